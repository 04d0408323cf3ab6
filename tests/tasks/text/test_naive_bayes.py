"""Naive Bayes: scores by hand and against scikit-learn, texts scored by the others, and the logits it is added to."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import MultinomialNB

import regard
from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.text.naive_bayes import NaiveBayes, features
from regard_workbench.training.loading import load

RANDOM = torch.Generator()
WORDS = [f"w{number}" for number in range(11)]


def drawn(texts, seed=0, classes=3):
    """Texts of 1 to 7 words and their classes."""
    random = np.random.default_rng(seed)
    found = [list(random.choice(WORDS, random.integers(1, 8))) for _ in range(texts)]
    return [[str(word) for word in text] for text in found], random.integers(0, classes, texts).tolist()


@pytest.fixture
def table(tmp_path):
    """A folder with three small files."""
    train = "good film\t1\ngood good fun\t1\nbad film\t0\nbad plot\t0\ngood plot\t1\n"
    (tmp_path / "train.tsv").write_text(train)
    (tmp_path / "dev.tsv").write_text("good zzz\t1\nbad\t0\n")
    (tmp_path / "test.tsv").write_text("fun\t1\nplot bad\t0\nzzz\t0\n")
    return tmp_path


def test_features_are_words_runs_of_words_and_beginnings_each_once():
    assert features(["not", "a", "fab", "a", "fab"], 1) == {"not", "a", "fab"}
    assert features(["not", "a", "fab", "a", "fab"], 2) == {"not", "a", "fab", "not a", "a fab", "fab a"}
    assert features(["a", "b", "c"], 3) == {"a", "b", "c", "a b", "b c", "a b c"}
    assert features(["good", "touching"], 1) == {"good", "touching", "good ", "touc ", "touch ", "touchi "}
    assert features([], 2) == set()


def test_words_are_always_counted_and_other_features_if_they_are_in_two_texts():
    texts = [["touching"], ["touched", "a", "nerve"], ["a", "nerve"]]
    counts = NaiveBayes.count(texts, [1, 1, 0], classes=2, longest=2)
    both, first = [1, 1], [0, 2]
    assert counts.counts == {
        "a": both,
        "a nerve": both,
        "nerve": both,
        "nerv ": both,
        "nerve ": both,
        "touc ": first,
        "touch ": first,
        "touched": [0, 1],
        "touching": [0, 1],
    }


def test_scores_are_these_by_hand():
    texts = [["fab"], ["fab", "fun"], ["bad"]]
    counts = NaiveBayes.count(texts, [1, 1, 0], classes=2, longest=2)
    assert counts.counts == {"bad": [1, 0], "fab": [0, 2], "fun": [0, 1]}  # "fab fun" is in one text only
    # class 0: ln(1+1) + ln(1/4); class 1: ln(2+1) + ln(3/6); so half of ln 3 on either side of the mean
    plain = [score * counts.scale for score in counts.scores(["fab", "new"])]
    assert plain == pytest.approx([-math.log(3) / 2, math.log(3) / 2])
    # Without itself, ["fab"]: class 1 has one text with "fab" and "fun", 1 + 1 of 2 + 3 counts; class 0 as before
    alone = [score * counts.scale for score in counts.scores(["fab"], own=1)]
    difference = math.log(2) + math.log(2 / 5) - math.log(2) - math.log(1 / 4)
    assert alone == pytest.approx([-difference / 2, difference / 2])
    # "fun" is in no other text, so that nothing but the number of texts speaks
    assert counts.scores(["fun"], own=1) == pytest.approx([0, 0])


def test_scores_are_those_of_scikit_learn():
    texts, labels = drawn(97)
    counts = NaiveBayes.count(texts, labels, classes=3, longest=2)
    kept = sorted(counts.counts)
    assert any(" " in feature for feature in kept)
    there = np.array([[feature in features(text, 2) for feature in kept] for text in texts])
    sizes = np.bincount(labels) + 1
    peer = MultinomialNB(alpha=1.0, class_prior=sizes / sizes.sum()).fit(there, labels)
    expected = peer.predict_joint_log_proba(there)
    expected -= expected.mean(1, keepdims=True)
    found = np.array([counts.scores(text) for text in texts]) * counts.scale
    assert np.allclose(found, expected, atol=1e-10)


def test_a_counted_text_is_scored_as_if_it_had_been_left_out():
    texts, labels = drawn(53, seed=1)
    texts = [*texts, *([word] for word in WORDS * 2)]  # every word is in other texts, too
    labels = [*labels, *(number % 3 for number in range(2 * len(WORDS)))]
    counts = NaiveBayes.count(texts, labels, classes=3, longest=1)
    for number in range(53):
        rest = [each for each in range(len(texts)) if each != number]
        others = NaiveBayes.count([texts[n] for n in rest], [labels[n] for n in rest], classes=3, longest=1)
        expected = [score * others.scale for score in others.scores(texts[number])]
        found = [score * counts.scale for score in counts.scores(texts[number], own=labels[number])]
        assert found == pytest.approx(expected)


def test_scores_of_the_counted_texts_have_a_mean_square_of_1():
    texts, labels = drawn(41, seed=2)
    counts = NaiveBayes.count(texts, labels, classes=3)
    scores = np.array([counts.scores(text, label) for text, label in zip(texts, labels, strict=True)])
    assert (scores**2).mean() == pytest.approx(1) and np.allclose(scores.sum(1), 0)
    assert NaiveBayes.count([], [], classes=2).scores(["a"]) == [0, 0]


def test_counts_survive_json_and_damaged_ones_are_refused():
    texts, labels = drawn(31, seed=3)
    counts = NaiveBayes.count(texts, labels, classes=3)
    state = json.loads(json.dumps(counts.state()))
    again = NaiveBayes.restored(state, 3)
    assert again.scores(texts[0]) == counts.scores(texts[0]) and again.state() == counts.state()
    damaged = [
        None,
        {**state, "counts": {"a": [1, 2]}},
        {**state, "counts": {"a": [1, 2, -3]}},
        {**state, "texts": 3},
        {**state, "counts": {"a": [1, 2, 0.5]}},
        {**state, "counts": []},
    ]
    for each in damaged:
        with pytest.raises(BadValue, match="naive_bayes: expected counts of 3 classes"):
            NaiveBayes.restored(each, 3)
    with pytest.raises(BadValue, match="scale"):
        NaiveBayes.restored({**state, "scale": 0.0}, 3)


def test_a_batch_of_classify_holds_the_scores_and_training_texts_those_of_the_others(table):
    task = tasks.build("classify", data=table, naive_bayes=2)
    batch = task.collate(list(task.examples("train")), RANDOM)
    texts = [row.text.split() for row in task.rows["train"]]
    counts = NaiveBayes.count(texts, [1, 1, 0, 0, 1], classes=2)
    left_out = [counts.scores(text, own) for text, own in zip(texts, [1, 1, 0, 0, 1], strict=True)]
    assert torch.allclose(batch.offset, torch.tensor(left_out)) and batch.offset.shape == (5, 2)
    tested = task.collate(list(task.examples("test")), RANDOM)
    assert torch.allclose(tested.offset[1], torch.tensor(counts.scores(["plot", "bad"])))
    typed = task.collate([task.encode(" plot  bad ")], RANDOM)
    assert torch.equal(typed.offset[0], tested.offset[1]) and typed.targets is None
    plain = tasks.build("classify", data=table)
    assert plain.collate([plain.encode("bad")], RANDOM).offset is None
    with pytest.raises(BadValue, match="naive_bayes"):
        tasks.build("classify", data=table, naive_bayes=-1)


def test_a_batch_takes_its_offset_along():
    batch = Batch(Batch.of(torch.arange(6).view(3, 2)).streams, offset=torch.arange(6.0).view(3, 2))
    assert list(batch.tensors()) == ["inputs", "offset"]
    assert batch.map(lambda tensor: tensor + 1).offset.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch.cast(torch.float64).offset.dtype == torch.float64
    assert batch.rows([2, 0]).offset.tolist() == [[4, 5], [0, 1]]
    filled = batch.filled({name: tensor * 2 for name, tensor in batch.tensors().items()})
    assert filled.offset.tolist() == [[0, 2], [4, 6], [8, 10]] and filled.inputs.tolist()[2] == [8, 10]


def test_logits_are_those_of_the_rows_and_the_offset_times_a_learned_gain():
    head = OneOf(3, offset=True).head(5)
    rows, offset = torch.randn(2, 5), torch.randn(2, 3)
    batch = Batch(Batch.of(torch.zeros(2, 1)).streams, offset=offset)
    assert torch.equal(head(rows, batch), offset)  # before training
    with torch.no_grad():
        head.gain.fill_(0.25)
        head.logits.weight.normal_()
    expected = rows @ head.logits.weight.T + head.logits.bias + 0.25 * offset
    assert torch.allclose(head(rows, batch), expected)
    head(rows, batch).pow(2).sum().backward()
    assert torch.allclose(head.gain.grad, (2 * expected * offset).sum())
    with pytest.raises(BadValue, match="offset"):
        head(rows, Batch.of(torch.zeros(2, 1)))
    assert not hasattr(OneOf(3).head(5), "gain")


@pytest.mark.parametrize("name", ["encoder", "static-transformer", "dynamic-transformer", "lstm-attention"])
def test_an_untrained_model_answers_as_naive_bayes_does(table, name):
    task = tasks.build("classify", data=table, naive_bayes=2)
    model = models.build(name, task.problem, dim=16, layers=1).eval()
    batch = task.collate(list(task.examples("test")), RANDOM)
    assert torch.equal(model(batch), batch.offset)


def test_a_run_with_naive_bayes_is_evaluated_and_loaded_as_it_was_trained(table, tmp_path):
    run = regard.train(
        "classify(naive_bayes=2)",
        model="lstm-attention(dim=16)",
        data=table,
        steps=3,
        batch_size=2,
        seed=1,
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    loaded = load(run.folder, checkpoint="last", device="cpu")
    assert "head.gain" in loaded.model.state_dict()
    assert (
        loaded.task.fitted.naive_bayes.state()
        == tasks.build("classify", data=table, naive_bayes=2).fitted.naive_bayes.state()
    )
    measured = regard.evaluate(run, "test", device="cpu", checkpoint="last")
    with torch.no_grad():
        guessed = loaded.model(loaded.task.collate(list(loaded.task.examples("test")), RANDOM)).argmax(-1)
    assert measured["accuracy"] == pytest.approx(float((guessed == torch.tensor([1, 0, 0])).float().mean()))
    alone = regard.evaluate(run, "test", device="cpu", checkpoint="last", batch_size=1)
    assert alone["loss"] == pytest.approx(measured["loss"])
