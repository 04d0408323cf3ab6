"""Pending steps: the loop reads results late, and the run is the same as if it had waited for each."""

import json
import math

import pytest
import torch

from regard_workbench import tasks
from regard_workbench.tasks import Batch
from regard_workbench.training import train
from regard_workbench.training.data import generator
from regard_workbench.training.engines.eager import EagerEngine
from regard_workbench.training.engines.engine import NonFinite, PendingStep, StepResult
from regard_workbench.training.run_folder import checkpoints


class LateResult:
    """The result of a step that was taken at once, but is ready only three steps later."""

    def __init__(self, taken, index, owner):
        self.taken, self.index, self.owner, self.number = taken, index, owner, owner.launched

    @property
    def ready(self):
        return self.owner.launched - self.number >= 3

    def result(self):
        if not math.isfinite(self.taken.loss):
            raise NonFinite(f"the loss is {self.taken.loss} for the batch of training examples {list(self.index)}")
        return self.taken


class StandInForGraphedStep:
    """What a captured step does on a GPU, done on the CPU: after a non-finite loss, every update is skipped."""

    def __init__(self, step):
        self.step, self.launched, self.skipping = step, 0, False

    def __call__(self, batches):
        (batch,) = batches
        self.launched += 1
        taken = StepResult(1.0, 1.0)
        if not self.skipping:
            try:
                taken = self.step([batch])
            except NonFinite:
                self.skipping, taken = True, StepResult(math.nan, 1.0)
        return LateResult(taken, batch.index, self)


@pytest.fixture
def late_results(monkeypatch):
    step = EagerEngine._step
    monkeypatch.setattr(EagerEngine, "_step", lambda *given, **options: StandInForGraphedStep(step(*given, **options)))


def run(folder, **changes):
    values = {"task": "toy", "steps": 23, "eval_every": 7, "save_every": 11, "log_every": 1, "device": "cpu"}
    return train({**values, "out": str(folder), **changes}, quiet=True)


def same_tensors(folder, one, other):
    """Whether two runs ended with the same weights, optimiser and random state."""
    found = [checkpoints.load_newest(folder / name / "checkpoints", print)[0] for name in (one, other)]
    return all(
        torch.equal(value, getattr(found[1], pieces)[name])
        for pieces in ("weights", "optimizer", "random")
        for name, value in getattr(found[0], pieces).items()
    )


def lines(folder):
    timed = ("seconds", "steps_per_second")
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in timed} for line in found]


def test_a_run_with_pending_steps_equals_one_that_waits_for_each(tmp_path, request):
    usual = run(tmp_path / "usual")
    request.getfixturevalue("late_results")
    late = run(tmp_path / "late")
    assert lines(tmp_path / "late") == lines(tmp_path / "usual")
    assert (late.steps, late.tokens, late.metrics, late.best) == (usual.steps, usual.tokens, usual.metrics, usual.best)
    assert same_tensors(tmp_path, "usual", "late")


def test_a_non_finite_loss_found_late_is_saved_as_of_the_step_before_it(tmp_path, request):
    with pytest.raises(NonFinite) as usual:
        run(tmp_path / "usual", task="toy(poison=5)", log_every=2)
    request.getfixturevalue("late_results")
    with pytest.raises(NonFinite) as late:
        run(tmp_path / "late", task="toy(poison=5)", log_every=2)
    assert str(late.value) == str(usual.value).replace(str(tmp_path / "usual"), str(tmp_path / "late"))
    assert lines(tmp_path / "late") == lines(tmp_path / "usual")
    saved = [checkpoints.load_newest(tmp_path / name / "checkpoints", print)[0] for name in ("usual", "late")]
    assert saved[0].name == saved[1].name and saved[0].step > 0
    assert same_tensors(tmp_path, "usual", "late")


def test_an_interrupted_and_resumed_run_ends_with_the_same_weights(tmp_path, late_results):
    run(tmp_path / "parts", steps=9, **{"optim.schedule": "constant"})
    run(tmp_path / "same", **{"optim.schedule": "constant"})
    values = {"steps": 23, "out": str(tmp_path / "parts")}
    train(values, resume=str(tmp_path / "parts"), quiet=True)
    assert same_tensors(tmp_path, "same", "parts")


def test_an_error_in_the_data_saves_all_steps_before_it(tmp_path, late_results, monkeypatch):
    from tests.training.toy import Toy

    collate = Toy.collate

    def failing(self, examples, random):
        failing.count += 1
        if failing.count == 6:
            raise OSError("the disk is gone")
        return collate(self, examples, random)

    failing.count = 0
    monkeypatch.setattr(Toy, "collate", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        run(tmp_path / "run", eval_every=100, save_every=100)
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert checkpoints.load_newest(tmp_path / "run" / "checkpoints", print)[0].step == 5


def test_a_pending_step_reads_its_slot_once_and_raises_what_a_step_raises():
    class Event:
        waits = 0

        def synchronize(self):
            self.waits += 1

        def query(self):
            return False

    def check(loss, norm, skipped):
        if skipped:
            raise NonFinite("skipped")

    slot, event = torch.tensor([0.5, 2.0, 0.0]), Event()
    pending = PendingStep(slot, event, check)
    assert not pending.ready
    assert pending.result() == StepResult(0.5, 2.0) and pending.ready
    slot.fill_(7.0)  # a later step overwrites it
    assert pending.result() == StepResult(0.5, 2.0) and event.waits == 1
    with pytest.raises(NonFinite, match="skipped"):
        PendingStep(torch.tensor([0.5, 2.0, 1.0]), event, check).result()


@pytest.mark.parametrize("context", [7, 8, 4000, 10**6])
def test_windows_cut_in_one_operation_equal_those_cut_one_by_one(context):
    task = tasks.build("language", context=context)
    examples = task.examples("train")
    every = len(examples)
    half, third = every // 2, every // 3
    for chosen in ([0], [every - 1], [0, half, every - 1, third], [half] * 5, [half, third]):
        chosen = [index % every for index in chosen]
        quick = task.batch(examples, chosen, generator("a", 1))
        slow = task.collate([examples[i] for i in chosen], generator("a", 1))
        assert quick.keep is None and slow.keep is None
        assert torch.equal(quick.inputs, slow.inputs) and torch.equal(quick.targets, slow.targets)
        assert quick.inputs.is_contiguous() and quick.targets.is_contiguous()


def test_a_batch_with_hidden_words_equals_its_collated_examples():
    task = tasks.build("language", context=9, objective="hidden")
    examples = task.examples("train")
    quick, slow = (task.batch(examples, [1, 2], generator(3)), task.collate([examples[1], examples[2]], generator(3)))
    assert isinstance(quick, Batch) and all(torch.equal(quick.tensors()[n], t) for n, t in slow.tensors().items())
