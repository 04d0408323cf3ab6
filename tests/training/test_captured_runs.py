"""Whole runs with captured steps, alone and in groups: the same checkpoints and log lines as without graphs."""

import json
import math

import numpy as np
import pytest
import torch

from regard_workbench.tasks import Batch
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.training import train
from regard_workbench.training.data import Order, seed_for
from regard_workbench.training.engines.cuda_graph import graphed_step
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep
from regard_workbench.training.engines.cuda_graph.engine import CapturedEngine
from regard_workbench.training.engines.engine import NonFinite, StepResult
from regard_workbench.training.run_folder import checkpoints
from regard_workbench.training.state import RandomState
from tests.training import captured_on_host
from tests.training.captured_on_host import use

GROUPS = [1, 2, 7]


def run(folder, **changes):
    """A rate that is the same in both widths, and an epoch of eight batches and a smaller one."""
    values = {
        "task": "digits",
        "model": "static-transformer(layers=1,dim=8,dropout=0.0)",
        "batch_size": 151,
        "steps": 47,
        "eval_every": 17,
        "save_every": 19,
        "log_every": 3,
        "device": "cpu",
        "eval_limit": 7,
        "optim.lr": 2.0**-8,
        "optim.warmup": 0,
        "optim.schedule": "constant",
    }
    return train({**values, "out": str(folder), **changes}, quiet=True)


def lines(folder):
    timed = ("seconds", "steps_per_second")
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in timed} for line in found]


def same_checkpoint(one, other):
    found = [checkpoints.load_newest(folder / "checkpoints", print)[0] for folder in (one, other)]
    assert found[0].name == found[1].name
    for pieces in ("weights", "optimizer", "random"):
        mine, theirs = (getattr(each, pieces) for each in found)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items()), pieces


@pytest.mark.parametrize("group", GROUPS)
def test_a_captured_run_equals_a_plain_one(tmp_path, monkeypatch, group):
    use(monkeypatch, 0)
    plain = run(tmp_path / "plain")
    made = use(monkeypatch, group)
    captured = run(tmp_path / "captured")
    (step,) = made
    assert lines(tmp_path / "captured") == lines(tmp_path / "plain")
    assert (captured.tokens, captured.metrics) == (plain.tokens, plain.metrics)
    same_checkpoint(tmp_path / "plain", tmp_path / "captured")
    assert len(step.captured) == 2 and step.ways.count("eager") == 6
    assert (step.ways.count("group") > 20) == (group > 1)


@pytest.mark.parametrize("group", [0, *GROUPS])
def test_every_step_gets_the_seed_of_its_number_however_it_is_launched(tmp_path, monkeypatch, group):
    seen = []

    def noted(self, batch, seed, means=CapturableStep._means):
        seen.append(int(seed))
        return means(self, batch, seed)

    monkeypatch.setattr(CapturableStep, "_means", noted)
    use(monkeypatch, group)
    run(tmp_path / "parts", steps=23, seed=5)
    train({"steps": 47, "out": str(tmp_path / "parts")}, resume=str(tmp_path / "parts"), quiet=True)
    assert seen == [seed_for(5, "dropout", step) >> 1 for step in range(1, 48)] and len(set(seen)) == 47


@pytest.mark.parametrize("group", GROUPS)
def test_a_captured_run_that_was_stopped_and_resumed_equals_one_that_was_not(tmp_path, monkeypatch, group):
    use(monkeypatch, 0)
    run(tmp_path / "plain")
    use(monkeypatch, group)
    run(tmp_path / "parts", steps=23)
    train({"steps": 47, "out": str(tmp_path / "parts")}, resume=str(tmp_path / "parts"), quiet=True)
    same_checkpoint(tmp_path / "plain", tmp_path / "parts")


@pytest.mark.parametrize("group", GROUPS)
def test_a_non_finite_loss_is_found_late_and_saved_as_of_the_step_before_it(tmp_path, monkeypatch, group):
    pixels, known = written_digits.images()
    train_split = written_digits.numbers_of("train")
    poisoned = pixels.copy()
    poisoned[train_split[Order(train_split, 151, 0)[6][3]], 5] = np.nan  # in the seventh batch
    monkeypatch.setattr("regard_workbench.tasks.digits.images", lambda: (poisoned, known))
    later = {"log_every": 2, "eval_every": 1000, "save_every": 1000, "bucket": 0}
    use(monkeypatch, 0)
    with pytest.raises(NonFinite) as plain:
        run(tmp_path / "plain", **later)
    made = use(monkeypatch, group)
    with pytest.raises(NonFinite) as late:
        run(tmp_path / "late", **later)
    assert str(late.value) == str(plain.value).replace(str(tmp_path / "plain"), str(tmp_path / "late"))
    assert "step 7:" in str(late.value) and len(made[0].ways) > 7  # later steps were launched
    assert lines(tmp_path / "late") == lines(tmp_path / "plain")
    same_checkpoint(tmp_path / "plain", tmp_path / "late")


def test_states_are_counted_on_from_the_last_that_was_read():
    state = torch.tensor([7, 40], dtype=torch.int64).view(torch.uint8)
    before = RandomState(torch.zeros(2), [state], "python", "numpy")
    after = before.after_draws(12)
    assert after.cuda[0].view(torch.int64).tolist() == [7, 52]
    assert state.view(torch.int64).tolist() == [7, 40]
    assert (after.torch is before.torch, after.python, after.numpy) == (True, "python", "numpy")


@pytest.mark.parametrize("group", GROUPS)
def test_a_snapshot_knows_what_captured_steps_before_it_drew(tmp_path, monkeypatch, group):
    """Launched or not: each replay on the stand-in draws one number."""
    use(monkeypatch, group)
    noted, snapshot = [], CapturedEngine.snapshot

    def noting(self):
        found = snapshot(self)
        noted.append((found.drawn, len(self.graphed_step.ways), self.graphed_step.ways.count("eager")))
        return found

    monkeypatch.setattr(CapturedEngine, "snapshot", noting)
    run(tmp_path / "run", steps=60, eval_every=1000, save_every=1000)
    taken = 0  # captured steps since the states were last read
    for (drawn, steps, eager), (_, before, eager_before) in zip(noted[1:], noted, strict=False):
        taken = 0 if eager > eager_before else taken + steps - before
        assert drawn == taken
    assert max(drawn for drawn, _, _ in noted) > 20


class Tell:
    """A step whose loss is the number of its batch; its weight never changes."""

    limit, average, seed = math.inf, None, None

    def __init__(self):
        self.parameters = [torch.nn.Parameter(torch.ones(()))]

    def backward(self, batch, seed):
        loss = self.parameters[0] * batch.inputs[0, 0]
        loss.backward()
        return loss.detach()

    def __call__(self, batches):
        (batch,) = batches
        return StepResult(float(batch.inputs[0, 0]), 1.0)


@pytest.mark.parametrize(("group", "pending"), [(1, 1), (1, 5), (2, 6), (3, 9)])
def test_a_device_far_behind_overwrites_nothing_that_was_not_read(monkeypatch, group, pending):
    """Slots, events and host buffers are used again only when the step that used them has ended."""
    monkeypatch.setattr(captured_on_host, "LATE", 10**6)
    monkeypatch.setattr(graphed_step, "StepGroup", captured_on_host.HostGroup)
    told = Tell()
    step = captured_on_host.HostGraphedStep(told, torch.optim.SGD(told.parameters, lr=0.0), pending, group)
    step.rate = 0.0
    numbers = [float(number) for number in range(1, 72)]
    taken = [step([Batch.of(torch.full((2, 3), number))]) for number in numbers]
    assert sum(not one.ready for one in taken) >= min(pending, 2)
    assert [one.result().loss for one in taken] == numbers
    assert step.ways.count("group" if group > 1 else "single") > 50
