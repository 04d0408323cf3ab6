"""classify: labels from training, unknown ones with file and line, macro F1 against scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.generated.opinions import BLAME, PRAISE, opinions
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN
from tests.tasks.stand_ins import Fixed, judged, rows_of

RANDOM = torch.Generator()


def folder(place, **files):
    for name, text in files.items():
        (place / f"{name}.tsv").write_text(text)
    return place


def test_labels_are_those_of_training_numbers_by_size(tmp_path):
    place = folder(tmp_path, train="a\t10\nb\t9\nc\t-1\nd\tgood\n", dev="a b zzz\t9\n", test="c\tgood\n")
    task = tasks.build("classify", data=place)
    assert task.fitted.labels == ["-1", "9", "10", "good"] and task.problem.answer.classes == 4
    assert task.examples("validation")[0][:2] == ([5, 6, 1], 1)
    assert task.decode([2]) == "10"


@pytest.mark.parametrize(("split", "name"), [("validation", "dev"), ("test", "test")])
def test_an_unknown_label_is_named_with_file_and_line(tmp_path, split, name):
    good = "a\t1\nb\t2\n"
    place = folder(tmp_path, **{"train": good, "dev": good, "test": good, name: "a\t1\n\nb\t3\n"})
    task = tasks.build("classify", data=place)
    with pytest.raises(BadValue, match=rf"{name}\.tsv:3: the label '3' does not occur.*Known: '1', '2'"):
        task.examples(split)


def test_one_label_is_not_enough(tmp_path):
    with pytest.raises(BadValue, match=r"train\.tsv: expected at least two labels, got only '1'"):
        tasks.build("classify", data=folder(tmp_path, train="a\t1\nb\t1\nc\t1\n", dev="a\t1\n", test="a\t1\n"))


def test_one_file_is_split_by_seed_and_no_text_is_in_two_splits(tmp_path):
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"text {n % 67}\t{n % 67 % 3}\n" for n in range(131)))
    task = tasks.build("classify", data=path)
    sets = [{row.text for row in task.rows[split]} for split in ("train", "validation", "test")]
    assert [len(part) for part in sets] == [53, 7, 7] and len(set.union(*sets)) == 67
    assert tasks.build("classify", data=path).rows == task.rows
    assert tasks.build("classify", data=path, seed=1).rows != task.rows


def test_a_whole_file_can_be_measured_with_what_another_run_learnt(tmp_path):
    task = tasks.build("classify")
    path = tmp_path / "new.tsv"
    path.write_text("".join(f"the film is {word}\tpositive\n" for word in PRAISE))
    other = tasks.TASKS["classify"](data=path, whole=True)
    other.restore(task.state())
    other.pose(other.problems()[0])
    assert other.problem == task.problem and len(other.examples("test")) == len(PRAISE)
    assert other.examples("test")[0].tokens == task.encode("the film is brilliant").tokens
    with pytest.raises(BadValue, match="has no file for train"):
        other.examples("train")


def test_generated_opinions_need_more_than_words():
    texts = opinions()
    assert len(texts) == len({text for text, _ in texts}) == 6000
    share = sum(label == "positive" for _, label in texts) / 6000
    assert abs(share - 0.5) < 0.03
    naive = 0
    for text, label in texts:
        words = text.split()
        balance = sum(w in PRAISE for w in words) - sum(w in BLAME for w in words)
        naive += (balance > 0) == (label == "positive")
    assert naive / 6000 < 0.75


def test_texts_are_padded_and_long_ones_cut(tmp_path):
    place = folder(tmp_path, train="a b c d e\t1\nb\t2\n", dev="a\t1\n", test="b\t2\n")
    task = tasks.build("classify", data=place, max_length=3)
    batch = task.collate(list(task.examples("train")), RANDOM)
    assert task.problem.inputs.length == 3 and task.length(task.examples("train")[0]) == 3
    assert rows_of(batch) == [list(example.tokens) for example in task.examples("train")]
    assert batch.targets.tolist() == [0, 1] and batch.keep.sum(1).tolist() == [3, 1]
    assert task.input_pieces(task.encode("b a zz q")) == ["b", "a", "<unk>"]
    assert task.collate([task.encode("b")], RANDOM).targets is None
    with pytest.raises(BadValue, match="--text"):
        task.encode("\n ")


def test_macro_f1_over_batches_is_that_of_scikit_learn():
    task = tasks.build("classify")
    vars(task)["fitted"] = replace(task.fitted, labels=list("abcde"))
    draws = np.random.default_rng(3)
    true = draws.integers(0, 4, 97)  # the fifth class neither occurs nor is guessed
    guessed = np.where(draws.random(97) < 0.6, true, draws.integers(0, 4, 97))
    models, batches = [], []
    for begin in range(0, 97, 13):
        part = slice(begin, begin + 13)
        logits = torch.nn.functional.one_hot(torch.tensor(guessed[part]), 5).float()
        batch = tasks.Batch.of(torch.zeros(len(logits), 1, dtype=torch.long), targets=torch.tensor(true[part]))
        models.append(Fixed(lambda b, x=logits: x))
        batches.append(batch)
    found = judged(task, models, *batches)
    assert found["macro_f1"] == pytest.approx(f1_score(true, guessed, average="macro"))
    assert found["accuracy"] == pytest.approx((true == guessed).mean())
    assert set(found) == {"loss", "accuracy", "macro_f1"}


@pytest.mark.parametrize("level", ["word", "character", "bpe"])
def test_every_level_reads_hostile_text(tmp_path, level):
    text = "nul \x00 👩‍👩‍👧‍👦 \u202eabc " + "y" * 20_011
    place = folder(tmp_path, train=f"{text}\t1\nb\t2\n", dev="b\t1\n", test="b\t2\n")
    task = tasks.build("classify", data=place, level=level)
    assert len(task.examples("train")) == 2 and task.problem.inputs.length <= 256


def test_folders_without_tables_are_refused(tmp_path):
    with pytest.raises(BadValue, match=r"has no file that ends in \.tsv, \.csv"):
        tasks.build("classify", data=tmp_path)
    with pytest.raises(BadValue, match="data: there is no file 'nowhere'"):
        tasks.build("classify", data="nowhere")
    with pytest.raises(BadValue, match=r"data: there is no file 'a\.tsv'"):
        tasks.build("classify", data="a.tsv,b.tsv")


def test_hidden_words_differ_each_time_and_only_in_training():
    task = tasks.build("classify", hide=0.5)
    plain = tasks.build("classify")
    examples, clear = list(task.examples("train"))[:50], list(plain.examples("train"))[:50]
    first, again, other = (task.collate(examples, torch.Generator().manual_seed(n)).inputs for n in (1, 1, 2))
    original = plain.collate(clear, torch.Generator().manual_seed(1)).inputs
    assert torch.equal(first, again) and not torch.equal(first, other)
    changed = first != original
    assert set(first[changed].tolist()) == {UNKNOWN} and not bool(changed[original == PADDING].any())
    assert 0.4 < float(changed.sum() / (original != PADDING).sum()) < 0.6
    tested = [t.collate(list(t.examples("test")), torch.Generator()).inputs for t in (task, plain)]
    assert torch.equal(*tested)
    with pytest.raises(BadValue, match="hide"):
        tasks.build("classify", hide=1.5)
