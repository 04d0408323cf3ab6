"""answerer over pictures: question and picture attend to each other, and the hops read the patches."""

import pytest
import torch

import regard
from regard_workbench import models
from regard_workbench.tasks import Batch, OneOf, Problem, Stream, TokenRows, Tokens
from regard_workbench.tasks.parts.streams import Patches

WORDS, LONGEST, CLASSES, DIM = 13, 7, 5, 12
SPEC = Patches.of(3, 8, 12, 4)  # 2 × 3 patches
PROBLEM = Problem({"picture": SPEC, "question": Tokens(WORDS, 0, LONGEST)}, OneOf(CLASSES))


def built(**options):
    torch.manual_seed(1)
    return models.build("answerer", PROBLEM, **{"dim": DIM, **options})


def batch(lengths=(7, 3), seed=2):
    generator = torch.Generator().manual_seed(seed)
    picture = torch.rand(len(lengths), SPEC.length, SPEC.width, generator=generator)
    words = torch.randint(1, WORDS, (len(lengths), max(lengths)), generator=generator)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    streams = {"picture": Stream(picture), "question": Stream(words.masked_fill(~keep, 0), keep)}
    return Batch(streams, {"targets": Stream(torch.tensor([1] * len(lengths)))})


@pytest.mark.parametrize(
    "options", [{}, {"tying": "layer", "hops": 2}, {"layers": 1, "num_heads": 3, "ordered": False}, {"norm": "group"}]
)
def test_every_weight_is_trained(options):
    model, given = built(**options), batch()
    model.loss(model(given), given)[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_padded_question_is_answered_as_it_is_alone():
    model, given = built().eval(), batch((7, 3, 1))
    together = model(given)
    for row, length in enumerate((7, 3, 1)):
        streams = {
            "picture": Stream(given.streams["picture"].data[row : row + 1]),
            "question": Stream(given.streams["question"].data[row : row + 1, :length]),
        }
        assert torch.allclose(model(Batch(streams))[0], together[row], atol=1e-5)


def test_what_is_remembered_depends_on_the_question_and_the_question_on_the_picture():
    model, given = built().eval(), batch((5, 5))
    picture, question = given.streams["picture"], given.streams["question"]
    ((keys, values), *_), row = model.memory(picture, question)
    asked_else = Stream(question.data.roll(1, 1), question.keep)
    ((other_keys, _), *_), other_row = model.memory(picture, asked_else)
    assert keys.shape == values.shape == (2, 6, DIM) and row.shape == (2, DIM)
    assert not torch.allclose(keys, other_keys) and not torch.allclose(row, other_row)
    _, seen_else = model.memory(Stream(1 - picture.data), question)
    assert not torch.allclose(row, seen_else)


def test_a_hop_over_the_picture_is_softmax_of_products_by_hand():
    model, given = built(hops=2).eval(), batch()
    (first, second), u = model.memory(*given.streams.values())
    for keys, values in (first, second):
        weights = torch.stack([(keys[row] @ u[row]).softmax(0) for row in range(2)])
        u = u + torch.stack([weights[row] @ values[row] for row in range(2)])
    assert torch.equal(first[1], second[0]), "the values of a hop are the keys of the next"
    assert torch.allclose(model(given), u @ model.head.logits.weight.T + model.head.logits.bias, atol=1e-5)


def test_both_directions_and_the_hops_are_observed():
    model, given = built().eval(), batch()
    with regard.observe(model) as seen:
        model(given)
    names = " ".join(seen.names())
    assert "to_source" in names and "to_query" in names and "hops.0" in names
    assert seen["hops.0"].weights().shape == (2, 1, 1, 6)


def test_options_of_pictures_are_refused_for_stories_and_wrong_ones_are_named():
    story = Problem({"story": TokenRows(WORDS, 5, 0, 11), "question": Tokens(WORDS, 0, 5)}, OneOf(CLASSES))
    given = {"width": 2, "norm": "batch"}
    for name, value in given.items():
        with pytest.raises(regard.RegardError, match=f"{name}: a memory of sentences has none"):
            models.build("answerer", story, **{name: value})
    with pytest.raises(regard.RegardError, match="num_heads: expected a divisor of dim=12, got 5"):
        built(num_heads=5)
    video = Patches.of(1, 6, 6, 3, frames=2)
    with pytest.raises(regard.RegardError, match="not the frames of a video"):
        models.build("answerer", Problem({"picture": video, "question": Tokens(WORDS, 0, 5)}, OneOf(CLASSES)))
