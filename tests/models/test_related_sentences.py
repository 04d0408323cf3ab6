"""answerer over stories whose sentences attend to each other: a round by hand, padding, order, what is observed."""

import math

import pytest
import torch

import regard
from regard_workbench import models, tasks
from regard_workbench.models.parts.memories import SentenceMemory
from regard_workbench.models.parts.related_sentences import RelatedSentences, Rounds
from regard_workbench.tasks import Batch
from tests.models.test_answerer import DIM, PROBLEM, WORDS, batch

HEADS, ROUNDS = 2, 3


def built(**options):
    torch.manual_seed(1)
    wanted = {"dim": DIM, "layers": ROUNDS, "num_heads": HEADS, **options}
    return models.build("answerer", PROBLEM, **wanted).double()


def normalised(row, norm):
    mean = sum(row) / len(row)
    spread = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + 1e-5)
    return [(x - mean) / spread * float(g) + float(b) for x, g, b in zip(row, norm.weight, norm.bias, strict=True)]


def mapped(row, linear):
    return [
        sum(float(w) * x for w, x in zip(weights, row, strict=True)) + float(b)
        for weights, b in zip(linear.weight, linear.bias, strict=True)
    ]


def one_round(rows, layer, vector):
    """A pre-norm encoder layer over rows that got the vector of the round, number by number."""
    rows = [[x + float(v) for x, v in zip(row, vector, strict=True)] for row in rows]
    inside = [normalised(row, layer.around_attention.norm) for row in rows]
    maps = (layer.attention.query_map, layer.attention.key_map, layer.attention.value_map)
    queries, keys, values = ([mapped(row, linear) for row in inside] for linear in maps)
    size = DIM // HEADS
    attended = []
    for query in queries:
        found = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = [sum(a * b for a, b in zip(query[part], key[part], strict=True)) / math.sqrt(size) for key in keys]
            exps = [math.exp(score) for score in scores]
            found += [
                sum(e * value[part][column] for e, value in zip(exps, values, strict=True)) / sum(exps)
                for column in range(size)
            ]
        attended.append(mapped(found, layer.attention.output_map))
    rows = [[x + y for x, y in zip(*pair, strict=True)] for pair in zip(rows, attended, strict=True)]
    after = []
    for row in rows:
        risen = mapped(normalised(row, layer.around_feed_forward.norm), layer.feed_forward.rise)
        curved = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in risen]
        fallen = mapped(curved, layer.feed_forward.fall)
        after.append([x + y for x, y in zip(row, fallen, strict=True)])
    return after


def test_rounds_are_one_layer_used_several_times_worked_out_by_hand():
    torch.manual_seed(3)
    rounds = Rounds(DIM, ROUNDS, HEADS, 0.0).double()
    for weight in rounds.parameters():
        torch.nn.init.normal_(weight.requires_grad_(False), std=0.5)
    rows = torch.randn(1, 5, DIM, dtype=torch.float64)
    expected = rows[0].tolist()
    for vector in rounds.vectors:
        expected = one_round(expected, rounds.layer, vector)
    found = rounds(rows, None)[0]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


def test_layers_choose_the_memory_and_more_rounds_cost_one_vector_each():
    kinds = [type(built(layers=layers, num_heads=None).memory) for layers in (None, 0)]
    assert kinds == [SentenceMemory, SentenceMemory]
    assert isinstance(built(layers=1).memory, RelatedSentences)
    sizes = [sum(p.numel() for p in built(layers=layers).parameters()) for layers in (1, 2, 5)]
    assert sizes[1] - sizes[0] == DIM and sizes[2] - sizes[1] == 3 * DIM


@pytest.mark.parametrize("ordered", [True, "learned"])
@pytest.mark.parametrize("tying", ["adjacent", "layer"])
def test_a_padded_batch_equals_its_stories(tying, ordered):
    model, lengths = built(tying=tying, hops=2, ordered=ordered).eval(), (7, 3, 1)
    given = batch(lengths)
    together = model(given)
    for row, length in enumerate(lengths):
        story = given.streams["story"].data[row : row + 1, :length]
        question = given.streams["question"].data[row : row + 1]
        alone = Batch({"story": tasks.Stream(story), "question": tasks.Stream(question)})
        assert torch.allclose(model(alone)[0], together[row], atol=1e-7)


def test_a_sentence_is_remembered_with_what_the_others_and_the_question_say():
    """Without layers the key of a sentence depends on its own words alone."""
    for layers, depends in ((0, False), (1, True)):
        model = built(layers=layers, num_heads=HEADS if layers else None).eval()
        given = batch((5, 5))
        story, question = given.streams["story"], given.streams["question"]
        ((keys, _), *_), _ = model.memory(story, question)
        other = story.data.clone()
        other[:, 4, 0] = other[:, 4, 0] % (WORDS - 1) + 1
        ((changed, _), *_), _ = model.memory(tasks.Stream(other), question)
        assert torch.equal(keys[:, :4], changed[:, :4]) != depends
        asked = question.data.roll(1, -1) % (WORDS - 1) + 1
        ((changed, _), *_), _ = model.memory(story, tasks.Stream(asked))
        assert torch.equal(keys, changed) != depends


def test_the_order_of_sentences_counts():
    model, given = built().eval(), batch((7, 7))
    story = given.streams["story"].data
    turned = Batch({**given.streams, "story": tasks.Stream(story.flip(1))})
    assert not torch.allclose(model(given), model(turned), atol=1e-3)


def test_rounds_and_hops_are_observed():
    model, given = built(hops=2).eval(), batch()
    with regard.observe(model) as seen:
        model(given)
    names = seen.names()
    assert [name for name in names if name.startswith("hops")] == ["hops.0", "hops.1"]
    assert len([name for name in names if name.startswith("memory.rounds.layer.attention")]) == ROUNDS
    weights = seen[names[0]].weights()
    assert weights.shape == (2, HEADS, 8, 8), "seven sentences after the question"
    assert (weights[1, ..., 4:] == 0).all(), "padding is never read"
    assert torch.allclose(weights.sum(-1), torch.ones(2, HEADS, 8, dtype=weights.dtype), atol=1e-6)


def test_every_weight_is_trained_and_wrong_options_are_refused():
    for options in ({}, {"tying": "layer"}, {"ordered": False, "layers": 1}):
        model, given = built(**options), batch()
        model.loss(model(given), given)[0].backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert models.build("answerer", PROBLEM, layers=2), "the default sizes go together"
    with pytest.raises(regard.RegardError, match="num_heads: expected a divisor of dim=6, got 4"):
        built(num_heads=4)
    with pytest.raises(regard.RegardError, match="layers: expected a whole number of at least 1"):
        built(layers=-1)
    with pytest.raises(regard.RegardError, match="num_heads: sentences attend in layers only"):
        built(layers=0)
    with pytest.raises(regard.RegardError, match="width: a memory of sentences has none, got 8"):
        built(width=8)
