"""A run that hangs is named, stopped and killed with all it started; the others go on, and nothing is left behind."""

import dataclasses
import os
import signal

import pytest

from regard.errors import BadValue
from regard_workbench.comparison import limits
from regard_workbench.comparison.engines import local, supervisor
from regard_workbench.comparison.engines.local import LocalEngine
from regard_workbench.comparison.job import Outcome
from regard_workbench.comparison.limits import Limits, duration_text, seconds
from tests.comparison import stubborn
from tests.comparison.registered import STRANGERS, strangers_registered  # noqa: F401
from tests.comparison.stubborn import numbers
from tests.comparison.test_local import Heard, job_of
from tests.training.commands import lives, until


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Processes that start at once, and an engine that does not wait for those that do not stop."""
    monkeypatch.setattr(local.sys, "executable", stubborn.program(tmp_path))
    monkeypatch.setattr(local, "SECONDS_TO_STOP", 0.1)


@pytest.fixture
def hung(monkeypatch):
    """Every run is over its limit as soon as its processes are there, and not before."""

    def exceeded(self):
        return "it made no progress for 7 seconds (--heartbeat)" if numbers(self.folder) else ""

    real = local.JobProcess.__init__

    def begin(self, job, hear):
        real(self, job, hear)
        self.limits.folder = job.folder

    monkeypatch.setattr(Limits, "exceeded", exceeded)
    monkeypatch.setattr(local.JobProcess, "__init__", begin)


@pytest.mark.parametrize("kind", ["stubborn", "polite"])
def test_a_run_that_hangs_is_stopped_with_all_it_started_and_the_next_one_runs(tmp_path, quick, hung, kind):
    jobs = [job_of(tmp_path / kind), job_of(tmp_path / "fails", 1)]
    heard = Heard()
    stopped, failed = LocalEngine(1).run(jobs, heard)
    assert stopped.error == (
        "it made no progress for 7 seconds (--heartbeat) and was stopped; its last checkpoint is of step 0"
    )
    assert heard.news(tmp_path / kind) == ["began", "failed"]  # not started again
    assert failed.error.startswith("trouble")
    until(lambda: not any(map(lives, numbers(tmp_path / kind))))
    assert Outcome.load(tmp_path / kind).error == stopped.error


def test_child_processes_of_a_run_end_with_it(tmp_path, quick):
    (outcome,) = LocalEngine(1).run([job_of(tmp_path / "leaves")], Heard())
    assert outcome.error and len(numbers(tmp_path / "leaves")) == 2
    until(lambda: not any(map(lives, numbers(tmp_path / "leaves"))))


def test_a_process_that_ends_with_exit_code_0_does_not_return_an_older_outcome(tmp_path, quick):
    job = job_of(tmp_path / "quits")
    old = Outcome("toy-net", None, 0, {**job.settings, "steps": 4}, job.folder, steps=4)
    (tmp_path / "quits").mkdir()
    old.save()
    (outcome,) = LocalEngine(1).run([job], Heard())
    assert "ended with exit code 0 but without an outcome" in outcome.error and outcome.steps == 0


@pytest.mark.slow
def test_a_second_ctrl_c_kills_runs_that_ignore_the_first(tmp_path):
    jobs = [job_of(tmp_path / "stubborn-1"), job_of(tmp_path / "stubborn-2", 1)]
    process, log = stubborn.engine(jobs, tmp_path)
    found = until(lambda: all(numbers(job.folder) for job in jobs)) and [
        number for job in jobs for number in numbers(job.folder)
    ]
    os.kill(process.pid, signal.SIGINT)
    until(lambda: "SIGINT: saving" in log.read_text())
    assert all(map(lives, found)) and process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(300)
    assert process.exitcode == 128 + signal.SIGINT
    until(lambda: not any(map(lives, found)))


@pytest.mark.slow
def test_runs_of_a_killed_engine_end_even_if_they_hang(tmp_path):
    job = job_of(tmp_path / "stubborn")
    process, log = stubborn.engine([job], tmp_path, grace=0.2)
    found = until(lambda: numbers(job.folder))
    until(lambda: "began" in log.read_text())  # the supervisor knew the group before that
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not any(map(lives, found)))
    process.join(300)


def test_after_ctrl_c_a_run_that_does_not_stop_is_killed_and_named(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(local, "SECONDS_TO_SAVE", 0.1)
    job = job_of(tmp_path / "stubborn")

    def interrupt(event):
        until(lambda: numbers(job.folder))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(local.Stopped) as stopped:
        LocalEngine(1).run([job], Heard(interrupt))
    assert [one.folder for one in stopped.value.unsaved] == [job.folder]
    until(lambda: not any(map(lives, numbers(job.folder))))


def test_a_model_that_hangs_with_pythons_lock_is_killed_and_the_others_end(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("REGARD_TOY_MARK", str(mark))
    monkeypatch.setattr(local, "SECONDS_TO_STOP", 0.1)
    over = "it made no progress for 7 seconds (--heartbeat)"
    monkeypatch.setattr(Limits, "exceeded", lambda self: over if self.heartbeat and mark.exists() else "")
    jobs = [
        dataclasses.replace(job_of(tmp_path / "hangs", 0, "deadlocks"), heartbeat=7.0),
        job_of(tmp_path / "fine", 1),
    ]
    heard = Heard()
    hung, fine = LocalEngine(2).run(jobs, heard)
    assert hung.error == f"{over} and was stopped; its last checkpoint is of step 5"
    assert not fine.error and fine.steps == 24
    assert heard.news(tmp_path / "hangs") == ["began", "failed"]


def test_progress_of_a_run_reaches_its_limits(tmp_path, monkeypatch):
    beats = []
    monkeypatch.setattr(Limits, "beat", lambda self: beats.append(self) or setattr(self, "named", True))
    LocalEngine(1).run([job_of(tmp_path / "run", steps=3)], Heard())
    assert len(beats) > 2  # when it was made, when its process was started, and while that trained


def test_the_supervisor_drops_ended_groups_and_kills_at_once_those_asked_to_stop(monkeypatch):
    killed, alive = [], {11, 13, 17}
    monkeypatch.setattr(supervisor, "kill", lambda group: killed.append(group) or alive.discard(group))
    monkeypatch.setattr(supervisor, "_alive", lambda group: group in alive)
    supervisor.guard([b"watch 11\n", b"watch 13\n", b"ended 11\n", b"watch 17\n", b"asked 17\n"], grace=0.0)
    assert killed == [17, 13]


class Clock:
    """Time that passes when a test says so."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(limits, "time", found)
    return found


def test_progress_keeps_a_run_alive_but_not_beyond_its_timeout(clock):
    run = Limits(timeout=100.0, heartbeat=7.0)
    for _ in range(14):
        clock.now += 7.0
        assert not run.exceeded()
        run.beat()
    clock.now += 2.0
    assert not run.exceeded()
    clock.now += 0.5
    assert run.exceeded() == "it took longer than 100 seconds (--timeout)"


def test_without_progress_a_run_is_named_once_and_over_its_limit_later(clock):
    run = Limits(timeout=None, heartbeat=1800.0)
    clock.now += 60.0
    assert run.silent() == "no progress for 1 minute; it is stopped after 30 minutes (--heartbeat)"
    clock.now += 1000.0
    assert not run.silent() and not run.exceeded()
    run.beat()
    clock.now += 61.0
    assert run.silent()
    clock.now += 1740.0
    assert run.exceeded() == "it made no progress for 30 minutes (--heartbeat)"
    assert not Limits(None, None).exceeded()


@pytest.mark.parametrize(
    ("given", "found"),
    [("90", 90.0), ("1.5", 1.5), ("90s", 90.0), ("5 min", 300.0), ("2 hours", 7200.0), ("never", None)],
)
def test_a_time_is_read_with_or_without_its_unit(given, found):
    assert seconds("timeout", given) == found


@pytest.mark.parametrize("given", ["0", "-3", "nan", "inf", "soon", "", "5 steps", "1e999", "5 bananas"])
def test_an_invalid_duration_is_refused(given):
    with pytest.raises(BadValue, match=r"heartbeat: expected a time, .* got"):
        seconds("heartbeat", given)


def test_durations_are_written_in_the_largest_whole_unit():
    assert [duration_text(one) for one in (7.0, 60.0, 90.0, 300.0, 3600.0, 7200.0)] == [
        "7 seconds",
        "1 minute",
        "90 seconds",
        "5 minutes",
        "1 hour",
        "2 hours",
    ]
