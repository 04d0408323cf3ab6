"""BPE-dropout against the library's own, and that batches with it can be made again."""

import collections
import json
import random
import shutil
from dataclasses import replace

import pytest
import tokenizers
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.pair_dropout import POOL, PairDropout
from regard_workbench.tasks.text.vocabulary import END, SPECIAL
from regard_workbench.training import train
from tests.training.toy import assert_same

TEXT = [
    "the old dog sees the older dogs",
    "der alte Hund sieht die älteren Hunde",
    "older and oldest, alte und älteste",
] * 7


@pytest.fixture(scope="module")
def known():
    return vocabulary.build("bpe", TEXT, 330)


def test_without_dropout_words_are_cut_as_usual(known):
    plain = PairDropout(known, 0.0)
    for text in TEXT[:3]:
        assert plain.drawn(plain.words(text), torch.Generator()) == known.encode(text)


def test_segmentations_are_as_frequent_as_those_of_the_library(known):
    """`tokenizers` has BPE-dropout, too, but with random numbers that cannot be seeded."""
    ours, word, count = PairDropout(known, 0.3), "Ġoldest", 20_000
    state = known.state()["tokenizer"]
    theirs = tokenizers.Tokenizer.from_str(json.dumps({**state, "model": {**state["model"], "dropout": 0.3}}))
    drawn = random.Random(5)
    found = collections.Counter(tuple(ours.segmented(word, drawn)) for _ in range(count))
    texts = [" oldest"] * count
    wanted = collections.Counter(
        tuple(number + len(SPECIAL) for number in one.ids) for one in theirs.encode_batch(texts)
    )
    assert len(wanted) > 5
    for pieces in found | wanted:
        assert found[pieces] / count == pytest.approx(wanted[pieces] / count, abs=0.02), pieces


def test_every_segmentation_is_the_same_text_and_the_pool_holds_several(known):
    dropout, random_draws = PairDropout(known, 0.4), torch.Generator().manual_seed(3)
    words = dropout.words(TEXT[1])
    drawn = [dropout.drawn(words, random_draws) for _ in range(30)]
    assert {known.decode(ids) for ids in drawn} == {TEXT[1]}
    assert len({tuple(ids) for ids in drawn}) > 20 and len(dropout.pool(words[1])) == POOL


def test_a_pool_does_not_depend_on_the_order_in_which_words_are_seen(known):
    one, other = PairDropout(known, 0.4, seed=2), PairDropout(known, 0.4, seed=2)
    for text in TEXT[:3]:
        one.words(text)
    for text in reversed(TEXT[:3]):
        other.drawn(other.words(text), torch.Generator())
    draws = [each.drawn(each.words(TEXT[2]), torch.Generator().manual_seed(7)) for each in (one, other)]
    assert draws[0] == draws[1]
    elsewhere = PairDropout(known, 0.4, seed=3)
    assert [elsewhere.pool(n) for n in elsewhere.words(TEXT[2])] != [one.pool(n) for n in one.words(TEXT[2])]


def test_a_batch_is_cut_as_its_texts_are_one_after_the_other(tmp_path):
    """Looked up at once, sources and targets in turn, with the draws that single texts would get."""
    for side, lines in (("en", TEXT[::3]), ("de", TEXT[1::3])):
        (tmp_path / f"all.{side}").write_text("".join(f"{line} {n}\n" for n, line in enumerate(lines)))
    files = [str(tmp_path / "all.en"), str(tmp_path / "all.de")]
    task = tasks.build("translate", data=files, vocabulary_size=330, bpe_dropout=0.3)
    examples = task.examples("train")
    batch = task.batch(examples, range(5), torch.Generator().manual_seed(11))
    draws = torch.Generator().manual_seed(11)
    for row, example in enumerate(examples[:5]):
        source, target = (side.drawn(words, draws) for side, words in zip(task._dropouts, example.words, strict=True))
        kept = batch.inputs[row][batch.keep[row]] if batch.keep is not None else batch.inputs[row]
        assert kept.tolist() == (source if len(source) <= task.fitted.max_source else list(example.source))
        found = batch.targets[row] if batch.target_keep is None else batch.targets[row][batch.target_keep[row]]
        fits = len(target) < task.fitted.max_target
        assert found.tolist() == ([*target, END] if fits else list(example.target))


def test_padding_to_a_multiple_repeats_shapes_and_changes_nothing_else(tmp_path):
    for side, lines in (("en", TEXT[::3]), ("de", TEXT[2::3])):
        (tmp_path / f"all.{side}").write_text("".join(f"{line} {n}\n" for n, line in enumerate(lines)))
    options = {"data": [str(tmp_path / "all.en"), str(tmp_path / "all.de")], "vocabulary_size": 330}
    plain = tasks.build("translate", **options)
    task = tasks.build("translate", **options, pad_to_multiple_of=3)
    vars(task)["fitted"] = replace(task.fitted, max_source=100, max_target=100)
    for rows in (range(3), range(2)):
        (one, other) = (of.batch(of.examples("train"), rows, torch.Generator()) for of in (plain, task))
        assert other.inputs.shape[1] % 3 == 0 and other.targets.shape[1] % 3 == 0
        assert other.keep is not None and other.target_keep is not None
        for found, wanted, keep in (
            (other.inputs, one.inputs, other.keep),
            (other.targets, one.targets, other.target_keep),
        ):
            width = wanted.shape[1]
            assert torch.equal(found[:, :width], wanted) and not found[:, width:].any()
            assert not keep[:, width:].any()
    longest = max(len(example.source) for example in task.examples("train"))
    vars(task)["fitted"] = replace(task.fitted, max_source=longest + 1)
    if task.fitted.max_source % 3:  # never longer than a model has positions
        limited = task.batch(task.examples("train"), range(3), torch.Generator())
        assert limited.inputs.shape[1] <= task.fitted.max_source
    with pytest.raises(BadValue, match="pad_to_multiple_of: expected"):
        tasks.build("translate", **options, pad_to_multiple_of=0)


@pytest.mark.parametrize("joint", [True, False])
def test_only_training_batches_are_cut_at_random_and_the_same_draws_make_the_same_batch(tmp_path, joint):
    for name in ("train", "val", "test"):
        for side, lines in (("en", TEXT[::3] + TEXT[2::3]), ("de", TEXT[1::3] + TEXT[2::3])):
            longest = " ".join(lines[:3])  # never cut anew: it would be too long
            (tmp_path / f"{name}.{side}").write_text("\n".join([*lines, longest]) + "\n")
    options = {"data": str(tmp_path), "vocabulary_size": 330, "joint": joint}
    task = tasks.build("translate", **options, bpe_dropout=0.3)
    plain = tasks.build("translate", **options)

    def batch(of, split, seed):
        return of.batch(of.examples(split), range(3), torch.Generator().manual_seed(seed))

    first, again, other = (batch(task, "train", seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs) and torch.equal(first.targets, again.targets)
    assert first.shapes() != other.shapes() or not torch.equal(first.inputs, other.inputs)
    assert first.inputs.shape != batch(plain, "train", 1).inputs.shape
    assert task.decode(first.targets[0].tolist()) == plain.decode(batch(plain, "train", 1).targets[0].tolist())
    (longest,) = (task.batch(task.examples("train"), [14], torch.Generator()).inputs).tolist()
    assert longest == task.fitted.source_vocabulary.encode(" ".join([TEXT[0]] * 3))
    for split in ("validation", "test"):
        assert torch.equal(batch(task, split, 1).inputs, batch(plain, split, 1).inputs)
    assert first.inputs.shape[1] <= task.fitted.max_source and first.targets.shape[1] <= task.fitted.max_target
    kept = tasks.build("translate", task.state(), **options, bpe_dropout=0.3)
    assert torch.equal(batch(kept, "train", 1).inputs, first.inputs)


def test_a_run_with_bpe_dropout_resumes_bit_for_bit(tmp_path):
    for side, line in (("en", TEXT[0]), ("de", TEXT[1])):
        (tmp_path / f"all.{side}").write_text("".join(f"{line} {number}\n" for number in range(9)))
    model = "transformer(dim=8, layers=1, num_heads=2, tied_source=true, word_dropout=0.2)"
    values = {
        "task": "translate(vocabulary_size=330, bpe_dropout=0.3, bleu_examples=1)",
        "model": model,
        "steps": 5,
        "data": [str(tmp_path / "all.en"), str(tmp_path / "all.de")],
        "batch_size": 2,
        "save_every": 1,
        "keep": "all",
        "device": "cpu",
        "optim.average": 0.9,
        "eval_every": 5,
    }
    train({**values, "out": str(tmp_path / "whole")}, quiet=True)
    run = shutil.copytree(tmp_path / "whole", tmp_path / "run")
    train({}, resume=str(run / "checkpoints" / "step-00000002"), quiet=True)
    assert_same(run, tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bpe_dropout": 1.0, "level": "bpe"}, "bpe_dropout: expected a fraction"),
        ({"bpe_dropout": 0.1}, "only level=bpe"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        tasks.build("translate", **options)
