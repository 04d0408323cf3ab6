"""The neural cache against a loop over words, and where its numbers may come from."""

import math

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks.measures import neural_cache
from regard_workbench.tasks.measures.neural_cache import NeuralCache, Read

WORDS, DIM, LENGTH = 7, 5, 61


def text(seed=0, length=LENGTH):
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.randn(length, DIM, generator=drawn)
    words = torch.randint(WORDS, (length,), generator=drawn)
    scores = torch.randn(length, WORDS, generator=drawn).log_softmax(-1)[torch.arange(length), words]
    return Read(rows, words, scores)


def by_hand(one, size, weight, sharpness):
    """−log p of every word, with Python's own numbers, after Grave et al., equations 2, 3 and 5."""
    rows, words, costs = one.rows.double().tolist(), one.words.tolist(), []
    for now in range(len(words)):
        odds = math.exp(float(one.scores[now]))
        places = range(max(0, now - size), now)
        if places:
            by_word = dict.fromkeys(range(WORDS), 0.0)
            for place in places:
                product = sum(a * b for a, b in zip(rows[now], rows[place], strict=True))
                by_word[words[place]] += math.exp(sharpness * product)  # words[place] came after row `place`
            odds = (1 - weight) * odds + weight * by_word[words[now]] / sum(by_word.values())
        costs.append(-math.log(odds))
    return costs


def in_parts(one, sizes):
    return [Read(*part) for part in zip(*(whole.split(sizes) for whole in one), strict=True)]


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
@pytest.mark.parametrize("strip", [1, 4, 512])
def test_the_cache_equals_a_loop_over_words(monkeypatch, size, strip):
    monkeypatch.setattr(neural_cache, "STRIP", strip)
    one = text()
    cost, count = NeuralCache(size, 0.3, 0.7).measure(in_parts(one, [19, 2, 40]))
    assert count == LENGTH and cost == pytest.approx(sum(by_hand(one, size, 0.3, 0.7)), rel=1e-5)


def test_a_word_that_the_model_holds_impossible_is_predicted_by_the_cache():
    """Two words: the second follows a row that is the present one, so the cache is sure of it."""
    rows, words = torch.ones(2, DIM), torch.tensor([4, 4])
    cost, _ = NeuralCache(9, 0.25, 1.0).measure([Read(rows, words, torch.tensor([math.log(0.5), -math.inf]))])
    assert cost == pytest.approx(-math.log(0.5) - math.log(0.25))


def test_weight_and_sharpness_are_the_best_of_the_grid_on_the_given_text():
    one = text(3)
    repeated = Read(*(torch.cat([whole[:20]] * 3) for whole in one))  # the cache helps: rows and words come again
    found = NeuralCache(40).choose(in_parts(repeated, 13))
    mean = float(repeated.rows.square().sum(1).mean())
    tried = {
        (weight, sharp / mean): sum(by_hand(repeated, 40, weight, sharp / mean))
        for weight in neural_cache.WEIGHTS
        for sharp in neural_cache.SHARPNESSES
    }
    best = min(tried, key=tried.__getitem__)
    assert (found.weight, found.sharpness) == (best[0], pytest.approx(best[1], rel=1e-6))
    half = NeuralCache(40, sharpness=0.5).choose(in_parts(repeated, 13))
    assert half.sharpness == 0.5 and half.weight in neural_cache.WEIGHTS


def made(**options):
    task = tasks.build("language", context=11, overlap=0.5, **options)
    model = models.build("decoder(dim=8, layers=1, num_heads=2)", task.problem).eval()
    return task, model


@torch.no_grad()
@pytest.mark.parametrize("name", ["decoder", "transformer-xl", "lstm-attention"])
def test_the_rows_of_a_model_are_those_that_its_head_reads(name):
    task = tasks.build("language", context=11)
    model = models.build(f"{name}(dim=8)", task.problem).eval()
    batch = task.batch(task.examples("validation"), range(3), torch.Generator())
    outputs, rows = model.with_rows(batch)
    assert torch.equal(outputs, model(batch)) and torch.equal(outputs, model.head(rows, batch))
    assert not model.head._forward_pre_hooks


@torch.no_grad()
def test_language_reads_every_word_of_a_split_once_and_in_order():
    task, model = made(cache=5)
    words = torch.cat([part.words for part in task._in_order(model, "validation", 4, "cpu")])
    assert torch.equal(words, task.tokens("validation")[1:])
    train = next(task._in_order(model, "train", 4, "cpu")).words
    assert torch.equal(train, task.tokens("train")[1 : len(train) + 1])


@pytest.mark.slow
@torch.no_grad()
def test_an_evaluation_reports_the_perplexity_with_a_cache_beside_the_plain_one():
    task, model = made(cache=23, cache_weight=0.2, cache_sharpness=0.05)
    found = {
        metric.name: metric.value(state) for metric, state in task.examine(model, "test", batch_size=4, device="cpu")
    }
    parts = list(task._in_order(model, "test", 4, "cpu"))
    whole = Read(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))
    first = Read(*(one[:300] for one in whole))
    state = NeuralCache(23, 0.2, 0.05).measure([first])
    assert state[0] == pytest.approx(sum(by_words(first, 23, 0.2, 0.05)), rel=1e-5)
    everything = NeuralCache(23, 0.2, 0.05).measure([whole])
    assert found["cache_perplexity"] == pytest.approx(math.exp(everything[0] / everything[1]), rel=1e-6)
    assert "perplexity" not in found and task.protocol()["cache"].endswith("weight: 0.2; sharpness: 0.05")


def by_words(one, size, weight, sharpness):
    """`by_hand` for a vocabulary of any size."""
    names = {word: number for number, word in enumerate(sorted(set(one.words.tolist())))}
    assert len(names) > WORDS
    numbers = torch.tensor([names[word] for word in one.words.tolist()])
    rows, costs = one.rows.double(), []
    for now in range(len(numbers)):
        odds = float(one.scores[now].double().exp())
        begin = max(0, now - size)
        if now > begin:
            weights = (sharpness * (rows[begin:now] @ rows[now])).softmax(0)
            odds = (1 - weight) * odds + weight * float(weights[numbers[begin:now] == numbers[now]].sum())
        costs.append(-math.log(odds))
    return costs


@pytest.mark.slow
@torch.no_grad()
def test_numbers_that_are_not_given_are_chosen_on_the_validation_text_alone(monkeypatch):
    task, model = made(cache=9)
    read, splits = task._in_order, []
    monkeypatch.setattr(
        task, "_in_order", lambda model, split, *rest: splits.append(split) or read(model, split, *rest)
    )
    chosen = NeuralCache(9).choose(list(read(model, "validation", 4, "cpu")))
    found = {metric.name: state for metric, state in task.examine(model, "test", batch_size=4, device="cpu")}
    assert splits == ["validation", "test"]
    assert found["cache_perplexity"] == chosen.measure(read(model, "test", 4, "cpu"))
    assert f"weight: {chosen.weight:g}; sharpness: {chosen.sharpness:.4g}" in task.protocol()["cache"]


@torch.no_grad()
def test_a_file_measured_as_a_whole_has_no_text_to_choose_on(tmp_path):
    (tmp_path / "some.txt").write_text("a man and a dog and a cat\n" * 9)
    known, model = made(cache=9)
    task = tasks.build("language", known.state(), cache=9, whole=True, data=str(tmp_path / "some.txt"), overlap=0.5)
    names = [metric.name for metric, _ in task.examine(model, "test", batch_size=4, device="cpu")]
    assert "cache_perplexity" not in names and "not measured" in task.protocol()["cache"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache": -1}, "cache: expected"),
        ({"cache": 5, "cache_weight": 1.0}, "cache_weight: expected a share above 0 and below 1"),
        ({"cache": 5, "cache_sharpness": 0.0}, "cache_sharpness: expected a finite number above 0"),
        ({"cache_weight": 0.1}, "cache_weight: it belongs to a cache"),
        ({"cache": 5, "objective": "hidden"}, "cache: the words after a row"),
    ],
)
def test_wrong_options_of_the_cache_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        tasks.build("language", **options)
