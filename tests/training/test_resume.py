"""Resuming bit for bit: from any step, inside an epoch, an accumulated step or a validation."""

import pytest

from regard.errors import BadValue
from regard_workbench.training import Config, train
from regard_workbench.training.run_folder import checkpoints, metrics_file
from regard_workbench.training.signals import Signals
from tests.training import toy
from tests.training.toy import assert_same

SETTINGS = {
    "task": "toy",
    "steps": 12,
    "accumulate": 3,
    "batch_size": 4,
    "save_every": 5,
    "eval_every": 3,
    "log_every": 1,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train({**SETTINGS, "out": str(folder)})
    return folder


class Raised(Signals):
    """Signals whose current instance a test can reach."""

    at = 0

    def __enter__(self):
        entered = super().__enter__()
        Raised.now = self
        return entered


@pytest.fixture
def interrupted(monkeypatch):
    """Send a SIGTERM in forward pass `number`, counting those of validation."""
    calls = 0
    forward = toy.ToyNet.forward
    import regard_workbench.training.run as run_module

    monkeypatch.setattr(run_module, "Signals", Raised)

    def counting(self, batch):
        nonlocal calls
        calls += 1
        if calls == Raised.at:
            Raised.now.received = 15
        return forward(self, batch)

    monkeypatch.setattr(toy.ToyNet, "forward", counting)

    def start(number):
        nonlocal calls
        calls, Raised.at = 0, number

    return start


@pytest.mark.parametrize("number", [1, 2, 3, 4, 8, 9, 10, 14, 20, 27, 31, 41])
def test_a_run_stopped_in_any_forward_pass_resumes_bit_for_bit(tmp_path, whole, interrupted, number):
    run = str(tmp_path / "run")
    interrupted(number)
    first = train({**SETTINGS, "out": run})
    assert first.stopped_by == "SIGTERM" and first.exit_code == 143 and first.steps < 12
    interrupted(0)
    second = train({"task": "toy"}, resume=run)
    assert second.stopped_by == "steps" and second.steps == 12
    assert_same(tmp_path / "run", whole)
    kept = [{**r, "seconds": 0, "steps_per_second": 0} for r in metrics_file.read(tmp_path / "run" / "metrics.jsonl")]
    want = [{**r, "seconds": 0, "steps_per_second": 0} for r in metrics_file.read(whole / "metrics.jsonl")]
    assert kept == want


def test_repeated_stops_change_nothing(tmp_path, whole, interrupted):
    run, count = str(tmp_path / "run"), 0
    while True:
        interrupted(14)  # more than the batches of a validation, which starts again
        count += 1
        if train({**SETTINGS, "out": run}, resume="auto").stopped_by == "steps":
            break
    assert count > 3
    assert_same(tmp_path / "run", whole)


def test_one_may_go_back_to_an_older_checkpoint(tmp_path, whole):
    run, told = tmp_path / "run", []
    train({**SETTINGS, "out": str(run)})
    older = checkpoints.paths(run / "checkpoints")[-1]
    train({}, resume=str(older), tell=told.append)
    assert any("set-aside" in text for text in told)
    assert_same(run, whole)


def test_a_finished_run_stays_as_it_is_and_may_get_more_steps(tmp_path):
    run = str(tmp_path / "run")
    train({**SETTINGS, "out": run})
    again = train({**SETTINGS, "out": run}, resume="auto")
    assert again.steps == 12 and again.metrics
    more = train({**SETTINGS, "out": run, "steps": 14}, resume="auto")
    assert more.steps == 14
    assert [r["step"] for r in metrics_file.read(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 15))


def test_auto_starts_a_run_if_there_is_none(tmp_path):
    assert train({**SETTINGS, "steps": 1, "out": str(tmp_path / "run")}, resume="auto").steps == 1


def test_auto_without_a_folder_resumes_the_newest_run_of_the_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = train({**SETTINGS, "steps": 1})
    assert first.folder.parent.name == "runs"
    again = train({"task": "toy", "steps": 2}, resume="auto")
    assert (again.folder, again.steps) == (first.folder, 2)


def test_a_run_cannot_resume_with_other_fixed_settings(tmp_path):
    run = str(tmp_path / "run")
    train({**SETTINGS, "steps": 1, "out": run})
    with pytest.raises(BadValue) as caught:
        train({**SETTINGS, "out": run, "seed": 5, "batch_size": 7}, resume="auto")
    assert "seed: " in str(caught.value) and "batch_size: " in str(caught.value)
    with pytest.raises(BadValue, match="no run here"):
        train({}, resume=str(tmp_path))


def test_a_run_resumes_after_its_folder_was_moved(tmp_path, whole, interrupted):
    interrupted(10)
    train(Config(**{**SETTINGS, "out": str(tmp_path / "old")}))
    (tmp_path / "old").rename(tmp_path / "new")
    interrupted(0)
    train({}, resume=str(tmp_path / "new"))
    assert_same(tmp_path / "new", whole)
    assert not (tmp_path / "old").exists()
