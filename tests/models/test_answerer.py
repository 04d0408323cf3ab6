"""answerer: a hop by hand, position encoding by loops, linear start, padding, what is observed."""

import copy
import math

import pytest
import torch

import regard
from regard_workbench import models
from regard_workbench.models.parts.memories import MemoryOptions, SentenceMemory
from regard_workbench.models.parts.token_rows import WeightedSum
from regard_workbench.tasks import Batch, OneOf, Problem, Stream, TokenRows, Tokens

WORDS, WIDTH, LENGTH, CLASSES, DIM = 13, 5, 11, 7, 6
PROBLEM = Problem({"story": TokenRows(WORDS, WIDTH, 0, LENGTH), "question": Tokens(WORDS, 0, WIDTH)}, OneOf(CLASSES))


def built(**options):
    torch.manual_seed(1)
    return models.build("answerer", PROBLEM, **{"dim": DIM, **options}).double()


def batch(sentences=(7, 3), seed=2):
    generator = torch.Generator().manual_seed(seed)
    longest = max(sentences)
    story = torch.randint(1, WORDS, (len(sentences), longest, WIDTH), generator=generator)
    story[..., 4] = 0
    keep = torch.arange(longest) < torch.tensor(sentences)[:, None]
    story = story.masked_fill(~keep[..., None], 0)
    question = torch.randint(1, WORDS, (len(sentences), 3), generator=generator)
    streams = {"story": Stream(story, None if keep.all() else keep), "question": Stream(question)}
    return Batch(streams, {"targets": Stream(torch.tensor([4] * len(sentences)))})


def encoded(table, ids):
    """Sukhbaatar et al. 2015, section 4.1, word by word: l_kj = (1 − j/J) − (k/d)(1 − 2j/J)."""
    real = [number for number in ids.tolist() if number]
    total = [0.0] * table.shape[1]
    for j, number in enumerate(real, 1):
        for k in range(1, table.shape[1] + 1):
            weight = (1 - j / len(real)) - k / table.shape[1] * (1 - 2 * j / len(real))
            total[k - 1] += weight * float(table[number, k - 1])
    return torch.tensor(total, dtype=torch.float64)


def test_a_row_of_words_is_the_weighted_sum_of_the_paper():
    torch.manual_seed(0)
    layer = WeightedSum(TokenRows(WORDS, WIDTH), DIM, sets=2).double()
    ids = torch.tensor([[[3, 1, 7, 0, 0], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0]]])
    found = layer(ids).detach()
    for place in range(2):
        for part in range(2):
            expected = encoded(layer.table.weight.detach()[:, part * DIM : (part + 1) * DIM], ids[0, place])
            assert torch.allclose(found[0, place, part * DIM : (part + 1) * DIM], expected)
    assert (found[0, 2] == 0).all(), "a sentence without words is zeros"
    bag = WeightedSum(TokenRows(WORDS, WIDTH), DIM, ordered=False).double()
    assert torch.allclose(bag(ids)[0, 0], bag.table.weight[[3, 1, 7]].sum(0))


def test_learned_weights_of_places_begin_as_a_bag_of_words_and_tell_orders_apart():
    torch.manual_seed(0)
    layer = WeightedSum(TokenRows(WORDS, WIDTH), DIM, sets=2, ordered="learned").double()
    ids = torch.tensor([[[3, 1, 7, 0, 0], [7, 1, 3, 0, 0], [0, 0, 0, 0, 0]]])
    table, places = layer.table.weight.detach(), layer.places.detach()
    assert torch.allclose(layer(ids)[0, 0], table[[3, 1, 7]].sum(0))
    places.copy_(torch.randn(WIDTH, 2 * DIM, dtype=torch.float64))
    found = layer(ids).detach()
    for row, words in ((0, (3, 1, 7)), (1, (7, 1, 3))):
        expected = [
            sum(float(places[place, k]) * float(table[word, k]) for place, word in enumerate(words))
            for k in range(2 * DIM)
        ]
        assert torch.allclose(found[0, row], torch.tensor(expected, dtype=torch.float64))
    assert (found[0, 2] == 0).all() and not torch.allclose(found[0, 0], found[0, 1])
    assert torch.allclose(layer(ids[..., :3]), layer(ids)), "padding changes nothing"


def by_hand(model, given, row, hops, adjacent):
    """The whole network for one story, sentence by sentence."""
    tables = model.memory.words.table.weight.detach().split(DIM, 1)
    ages = model.memory.ages.weight.detach().split(DIM, 1)
    told, question = given.streams["story"], given.streams["question"].data[row]
    length = told.data.shape[1] if told.keep is None else int(told.keep[row].sum())

    def memory(part):
        rows = [encoded(tables[part], told.data[row, i]) + ages[part][length - 1 - i] for i in range(length)]
        return torch.stack(rows)

    u = encoded(tables[0] if adjacent else model.question.table.weight.detach(), question)
    for hop in range(hops):
        keys, values = (memory(hop), memory(hop + 1)) if adjacent else (memory(0), memory(1))
        scores = [float(u @ key) for key in keys]
        exps = [math.exp(score - max(scores)) for score in scores]
        read = sum(e / sum(exps) * value for e, value in zip(exps, values, strict=True))
        carried = u if adjacent else model.between.weight.detach() @ u + model.between.bias.detach()
        u = carried + read
    return model.head.logits.weight.detach() @ u + model.head.logits.bias.detach()


@pytest.mark.parametrize("tying", ["adjacent", "layer"])
@pytest.mark.parametrize("hops", [1, 3])
def test_the_hops_are_those_of_the_paper_worked_out_by_hand(tying, hops):
    model, given = built(tying=tying, hops=hops).eval(), batch()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    found = model(given)
    for row in range(2):
        assert torch.allclose(found[row], by_hand(model, given, row, hops, tying == "adjacent"), atol=1e-6)


def test_adjacent_tying_scores_words_as_answers_by_the_last_values():
    """Section 2.2 of the paper: W is the table of the last values, where every word may be the answer."""
    problem = Problem(PROBLEM.streams, OneOf(WORDS))
    torch.manual_seed(5)
    shared = models.build("answerer", problem, dim=DIM, hops=2).double()
    assert not list(shared.head.parameters()) and shared(batch()).shape == (2, WORDS)
    apart = models.build("answerer", problem, dim=DIM, hops=2, tying="layer").double()
    assert apart.head.logits.weight.shape == (WORDS, DIM), "layer-wise tying has a W of its own"
    other = built(hops=2)  # has fewer answers than words, so a W of its own
    other.memory.load_state_dict(shared.memory.state_dict())
    rows = torch.eye(DIM, dtype=torch.float64)
    other.head.logits = torch.nn.Identity()
    last = shared.memory.words.table.weight[:, 2 * DIM :]
    assert torch.allclose(shared(batch()), other(batch()) @ rows @ last.T)


def test_the_age_of_a_sentence_counts_those_after_it_whatever_the_padding():
    told, asked = PROBLEM.streams.values()
    memory = SentenceMemory(told, asked, DIM, 1, MemoryOptions()).double()
    torch.nn.init.zeros_(memory.words.table.weight)
    ((keys, _),), _ = memory(*batch((5, 2)).streams.values())
    assert torch.equal(keys[0], memory.ages.weight[[4, 3, 2, 1, 0], :DIM])
    assert torch.equal(keys[1, :2], memory.ages.weight[[1, 0], :DIM])


def test_a_padded_batch_equals_its_stories():
    for options in ({}, {"linear_start": 5}, {"normalize": "sparsemax"}):
        model, given = built(**options).eval(), batch((7, 3, 1))
        together = model(given)
        for row, length in enumerate((7, 3, 1)):
            streams = {
                "story": Stream(given.streams["story"].data[row : row + 1, :length]),
                "question": Stream(given.streams["question"].data[row : row + 1]),
            }
            assert torch.allclose(model(Batch(streams))[0], together[row], atol=1e-7)


def linear_by_hand(model, given):
    """One hop whose weights are the scores themselves."""
    ((keys, values),), u = model.memory(*given.streams.values())
    scores = (keys @ u[:, :, None])[..., 0]
    keep = given.streams["story"].keep
    scores = scores if keep is None else scores * keep
    return model.head(u + (scores[:, None] @ values)[:, 0], given)


def test_training_begins_without_softmax_and_the_count_is_saved_with_the_weights():
    model, given = built(hops=1, linear_start=2), batch()
    with_softmax = built(hops=1)
    expected = linear_by_hand(model, given)
    assert torch.allclose(model.eval()(given), expected), "measured before training: still linear"
    assert int(model.batches) == 0
    model.train()
    for _ in range(2):
        assert torch.allclose(model(given), expected)
    kept = copy.deepcopy(model.state_dict())
    assert torch.allclose(model(given), with_softmax(given)), "from the third batch on"
    again = built(hops=1, linear_start=2).eval()
    again.load_state_dict(kept)
    assert torch.allclose(again(given), with_softmax(given)) and int(again.batches) == 2


def test_gradients_of_the_linear_start_are_those_of_plain_torch():
    model, given = built(hops=1, linear_start=9), batch()
    parameters = [p for name, p in model.named_parameters()]
    one = torch.autograd.grad(model.loss(model(given), given)[0], parameters)
    other = torch.autograd.grad(model.loss(linear_by_hand(model, given), given)[0], parameters)
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(one, other, strict=True))


def test_each_hop_is_observed_with_its_weights_over_the_sentences():
    model, given = built(hops=3).eval(), batch()
    with regard.observe(model) as seen:
        model(given)
    assert seen.names() == ["hops.0", "hops.1", "hops.2"]
    pairs, u = model.memory(*given.streams.values())
    scores = (pairs[0][0] @ u[:, :, None])[..., 0].masked_fill(~given.streams["story"].keep, -math.inf)
    assert torch.allclose(seen["hops.0"].weights()[:, 0, 0], scores.softmax(-1), atol=1e-6)
    assert (seen["hops.2"].weights()[1, ..., 3:] == 0).all(), "padding is never read"


def test_every_weight_is_trained_and_unknown_words_for_options_are_refused():
    for tying in ("adjacent", "layer"):
        model, given = built(tying=tying), batch()
        model.loss(model(given), given)[0].backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with pytest.raises(regard.RegardError, match=r"tying: there is no 'none'.*adjacent.*layer"):
        built(tying="none")
    with pytest.raises(regard.RegardError, match="hops: expected a whole number of at least 1"):
        built(hops=0)
    with pytest.raises(regard.RegardError, match="no place for another attention"):
        built(attention="local")


def test_a_problem_without_a_memory_and_a_question_names_who_can_serve_it():
    with pytest.raises(
        regard.RegardError, match=r"answerer reads a memory \(sentences or a picture\) and a question.*encoder"
    ):
        models.build("answerer", Problem.of(Tokens(WORDS, length=7), OneOf(3)))
    reversed_streams = dict(reversed(PROBLEM.streams.items()))
    assert not models.fits(models.MODELS["answerer"], Problem(reversed_streams, OneOf(3)))


def test_another_model_reads_the_same_sentences_and_question():
    """`encoder` embeds each sentence by the same weighted sum; padding changes nothing."""
    torch.manual_seed(0)
    model, given = models.build("encoder", PROBLEM, dim=16, layers=1).double().eval(), batch((7, 3))
    together = model(given)
    streams = {
        "story": Stream(given.streams["story"].data[1:, :3]),
        "question": Stream(given.streams["question"].data[1:]),
    }
    assert together.shape == (2, CLASSES)
    assert torch.allclose(model(Batch(streams))[0], together[1], atol=1e-9)
