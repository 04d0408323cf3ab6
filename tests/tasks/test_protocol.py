"""What every task keeps: examples that are always the same, batches equal to single examples, state that restores."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.errors import BadValue, Unsupported
from regard_workbench import tasks

NAMES = ["classify", "copy", "dates", "digits", "language", "recall", "translate"]
SPLITS = ("train", "validation", "test")


def seeded():
    return torch.Generator().manual_seed(5)


def posed():
    """Every task with every problem it poses."""
    for name in NAMES:
        task = tasks.build(name)
        for number in range(len(task.problems())):
            yield name, number


@pytest.fixture(params=list(posed()), ids=lambda p: f"{p[0]}-{p[1]}")
def task(request):
    name, number = request.param
    made = tasks.build(name)
    made.pose(made.problems()[number])
    return made


def test_the_seven_tasks_are_there():
    assert set(NAMES) <= set(tasks.names())


def random_outputs(task, batch):
    shape = (batch.size,) if isinstance(task.problem.answer, tasks.OneOf) else batch.targets.shape[:2]
    return torch.randn(*shape, task.problem.answer.outputs)


def some(task, split="validation"):
    examples = task.examples(split)
    return [examples[n] for n in (0, 1, 2, 5, len(examples) - 1)]


def test_batches_have_the_shapes_the_problem_says(task):
    problem = task.problem
    for split in SPLITS:
        batch = task.collate(some(task, split), seeded())
        assert batch.inputs.shape[:1] == (5,) and batch.inputs.shape[1] <= problem.inputs.length
        if isinstance(problem.inputs, tasks.Vectors):
            assert batch.inputs.shape[2] == problem.inputs.width and batch.inputs.is_floating_point()
        else:
            assert batch.inputs.dtype == torch.long and int(batch.inputs.max()) < problem.inputs.count
            if batch.keep is not None:
                assert (batch.inputs[~batch.keep] == problem.inputs.padding).all()
        if batch.keep is not None:
            assert batch.keep.shape == batch.inputs.shape[:2] and batch.keep.any(1).all()
        if batch.target_keep is not None:
            assert batch.target_keep.shape == batch.targets.shape[:2] and batch.target_keep.any()
        if not isinstance(problem.answer, tasks.Bits):
            assert int(batch.targets.min()) >= 0 and int(batch.targets.max()) < problem.answer.outputs
        if isinstance(problem.answer, tasks.Writes):
            assert batch.targets.shape[1] <= problem.answer.length
        assert max(task.length(example) for example in some(task, split)) >= batch.inputs.shape[1]


def test_the_loss_of_a_batch_is_the_sum_of_its_examples(task):
    examples = some(task)
    batch = task.collate(examples, seeded())
    outputs = random_outputs(task, batch)
    head = task.problem.answer.head()
    total, count = head.loss(outputs, batch)
    alone, terms = 0.0, 0.0
    for row, example in enumerate(examples):
        single = task.collate([example], seeded())
        assert single.keep is None
        # What is hidden is drawn for each batch anew: take what this one drew.
        if isinstance(task.problem.answer, tasks.HiddenTokens):
            length = single.inputs.shape[1]
            taken = (part[row : row + 1, :length] for part in (batch.inputs, batch.targets, batch.target_keep))
            inputs, targets, asked = taken
            single = tasks.Batch.of(inputs, None, targets, asked)
        length = 1 if isinstance(task.problem.answer, tasks.OneOf) else single.targets.shape[1]
        part = outputs[row : row + 1] if outputs.dim() == 2 else outputs[row : row + 1, :length]
        loss, number = head.loss(part, single)
        alone, terms = alone + float(loss), terms + float(number)
        kept = batch.inputs[row] if batch.keep is None else batch.inputs[row][batch.keep[row]]
        assert torch.equal(kept, single.inputs[0])
    assert float(total) == pytest.approx(alone, rel=1e-5) and float(count) == terms


def test_the_order_of_examples_does_not_matter_to_indexing(task):
    again = tasks.build(task.name)
    again.pose(task.problem)
    for split in SPLITS:
        forward = [again.examples(split)[n] for n in (7, 3)]
        one = task.collate([task.examples(split)[n] for n in (7, 3)], seeded())
        two = again.collate(forward, seeded())
        assert torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets)


def test_state_is_json_and_restores_the_problem(task):
    state = json.loads(json.dumps(task.state()))
    fresh = tasks.TASKS[task.name]()
    fresh.restore(state)
    assert fresh.problems() == task.problems()
    fresh.pose(task.problem)
    one, two = (made.collate(some(made, "test"), seeded()) for made in (task, fresh))
    assert torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets)
    assert json.dumps(fresh.state()) == json.dumps(state)


def test_a_restored_task_needs_no_data_to_use_weights(tmp_path):
    """The files a run was trained on may be gone when its model is asked to predict."""
    (tmp_path / "a.txt").write_text("".join(f"some text to learn {n}\n" for n in range(40)))
    (tmp_path / "b.tsv").write_text("".join(f"word{n} is\t{n % 2}\n" for n in range(20)))
    for name, file in (("language", "a.txt"), ("classify", "b.tsv"), ("translate", "a.txt,{}/a.txt")):
        data = f"{tmp_path}/{file}".format(tmp_path)
        task = tasks.build(name, data=data)
        gone = tasks.TASKS[name](data=data.replace(str(tmp_path), "/nowhere"))
        gone.restore(task.state())
        assert gone.problems() == task.problems()
        gone.pose(task.problem)
        assert gone.input_pieces(gone.encode("some text")) == task.input_pieces(task.encode("some text"))


def test_tasks_and_their_examples_pickle(task):
    """Worker processes receive them that way."""
    copy = pickle.loads(pickle.dumps(task))
    one, two = task.examples("train"), pickle.loads(pickle.dumps(copy.examples("train")))
    assert torch.equal(task.collate([one[11]], seeded()).inputs, copy.collate([two[11]], seeded()).inputs)


def test_wrong_splits_and_options_are_refused():
    for name in NAMES:
        with pytest.raises(BadValue, match=r"split: there is no 'valid'"):
            tasks.build(name).examples("valid")
        with pytest.raises(BadValue, match=f"option of {name}: there is no 'colour'"):
            tasks.build(name, colour=3)


def fingerprint():
    """One number for what all tasks hold."""
    found = hashlib.sha256()
    made = [tasks.build(name) for name in NAMES] + [tasks.build("language", level="bpe", vocabulary_size=400)]
    for task in made:
        for split in SPLITS:
            examples = task.examples(split)
            batch = task.collate([examples[n] for n in (0, 3, -1)], seeded())
            found.update(str((len(examples), batch.inputs.tolist(), batch.targets.tolist())).encode())
    return found.hexdigest()


@pytest.mark.slow
def test_another_process_sees_the_same_and_loads_heavy_libraries_late():
    code = (
        "import sys, regard_workbench.tasks\n"
        "print([m for m in ('sklearn', 'tokenizers', 'sacrebleu', 'datasets') if m in sys.modules])\n"
        "from tests.tasks.test_protocol import fingerprint\n"
        "print(fingerprint())"
    )
    changed = {"PYTHONHASHSEED": "23", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **changed},
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.stdout.split("\n") == ["[]", fingerprint(), ""]


class Feature:
    def __init__(self, names):
        self.names = names


class Part(list):
    @property
    def features(self):
        return {"text": object(), "label": Feature(["bad", "good"])}


class Hub:
    """In place of the library `datasets`."""

    @staticmethod
    def load_dataset(name, configuration):
        assert (name, configuration) == ("someone/set", "small")
        rows = Part({"text": f"text {n}", "label": n % 2} for n in range(29))
        return {"train": rows, "test": Part([{"text": "text", "label": -1}]), "dev": Part(rows[:3])}


def test_sets_of_the_hub_are_read_where_the_library_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", Hub)
    task = tasks.build("classify", data="hf:someone/set:small")
    assert task.fitted.labels == ["bad", "good"]
    assert len(task.examples("validation")) == 3, "their name of the split is dev"
    assert len(task.examples("train")) == 26 and len(task.examples("test")) == 3, "unlabelled rows are left out"
    text = tasks.build("language", data="hf:someone/set:small", context=7)
    assert text.texts["validation"] == "text 0\ntext 1\ntext 2"
    pairs = tasks.build("translate", data="hf:someone/set:small", level="word")
    assert pairs.rows["validation"][1] == ("text 1", "good")


@pytest.mark.parametrize("name", ["classify", "language", "translate"])
def test_without_the_library_the_extra_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unsupported, match=r"'hf:imdb' needs the package datasets.*regard\[huggingface\]"):
        tasks.build(name, data="hf:imdb")
