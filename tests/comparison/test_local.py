"""Runs as processes of this machine: finished runs are not repeated, killed ones resume, results depend on neither."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from regard_workbench.comparison.engines import local
from regard_workbench.comparison.engines.local import JobProcess, LocalEngine, capacity_for, last_step
from regard_workbench.comparison.engines.stopped import Stopped
from regard_workbench.comparison.job import Contestant, Job
from regard_workbench.comparison.worker import perform
from regard_workbench.training.run_folder import metrics_file
from tests.comparison.registered import STRANGERS, strangers_registered  # noqa: F401
from tests.training.commands import until

SETTINGS = {"task": "toy", "steps": 24, "eval_every": 5, "save_every": 4, "log_every": 1, "device": "cpu"}


def job_of(folder, seed=0, model="toy-net", **changes):
    settings = {**SETTINGS, **changes, "model": model, "seed": seed}
    return Job(Contestant(model), seed, settings, str(folder), use=(STRANGERS,))


class Heard(list):
    """Every event, and something to do at one."""

    def __init__(self, act=lambda event: None):
        super().__init__()
        self.act = act

    def __call__(self, event):
        self.append(event)
        self.act(event)

    def news(self, folder):
        return [event.news for event in self if event.job.folder == str(folder) and event.news != "step"]


def plain(outcome):
    """What must be equal, to the last bit, between two runs of the same settings."""
    return repr(dataclasses.replace(outcome, folder="", seconds=0.0, steps_per_second=0.0, versions={}, metrics=None))


def logged(folder):
    """Every line of metrics.jsonl, without what the clock says."""
    found = metrics_file.read(Path(folder) / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in ("seconds", "steps_per_second")} for line in found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Two seeds, one after the other in this process."""
    home, threads = tmp_path_factory.mktemp("two"), torch.get_num_threads()
    jobs = [job_of(home / f"seed-{seed}", seed) for seed in (0, 1)]
    yield jobs, [perform(job) for job in jobs]
    torch.set_num_threads(threads)


def test_finished_runs_start_no_process(undisturbed, monkeypatch):
    jobs, outcomes = undisturbed
    monkeypatch.setattr(local.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    heard = Heard()
    assert [repr(outcome) for outcome in LocalEngine(2).run(jobs, heard)] == [repr(o) for o in outcomes]
    assert [event.news for event in heard] == ["done", "done"]


@pytest.fixture
def started(monkeypatch):
    """Every process the engine starts, in order."""
    found = []

    def noted(*arguments, real=subprocess.Popen, **options):
        found.append(real(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(local.subprocess, "Popen", noted)
    return found


def test_side_by_side_and_killed_in_the_middle_runs_end_with_the_same_bits(undisturbed, tmp_path, monkeypatch, started):
    jobs, outcomes = undisturbed
    monkeypatch.setenv("REGARD_TOY_PAUSE", f"11:7:{tmp_path / 'go-on'}")
    monkeypatch.setattr(local, "SECONDS_BETWEEN_NEWS", 0.01)

    def kill(event):
        if event.news == "step" and event.job.seed == 0 and event.step >= 10 and len(started) == 2:
            started[0].kill()
            (tmp_path / "go-on").touch()

    heard = Heard(kill)
    both = [dataclasses.replace(job, folder=str(tmp_path / str(job.seed))) for job in jobs]
    found = LocalEngine(2).run(iter(both), heard)
    assert heard.news(tmp_path / "0") == ["began", "again", "done"]
    assert heard.news(tmp_path / "1") == ["began", "done"]
    assert [process.returncode for process in started] == [-signal.SIGKILL, 0, 0]
    assert [plain(outcome) for outcome in found] == [plain(outcome) for outcome in outcomes]
    assert not any(outcome.error for outcome in found)
    for job in jobs:
        assert logged(tmp_path / str(job.seed)) == logged(job.folder)
    again = next(event for event in heard if event.news == "again")
    assert again.step >= 8 and "SIGKILL" in again.text
    assert f"Resuming from step-{again.step:08}" in (tmp_path / "0" / "log.txt").read_text()


def test_a_run_that_always_dies_fails_and_the_next_one_runs(tmp_path, monkeypatch, started):
    # Nothing it does ends before it is killed, however long this process has to wait for a core.
    monkeypatch.setenv("REGARD_TOY_SLOW", "100000")

    def kill(event):
        if event.job.seed == 0 and event.news in ("began", "again"):
            started[-1].kill()

    jobs = [job_of(tmp_path / "dies"), job_of(tmp_path / "falls", 1, "falls")]
    heard = Heard(kill)
    dead, fallen = LocalEngine(1).run(jobs, heard)
    assert "SIGKILL" in dead.error and "3 times" in dead.error
    assert heard.news(tmp_path / "dies") == ["began", "again", "again", "failed"]
    assert len(started) == 4
    assert fallen.error == "RuntimeError: the floor gave way"
    assert heard.news(tmp_path / "falls") == ["began", "failed"]
    assert "Traceback" in (tmp_path / "falls" / "log.txt").read_text()


def test_the_error_of_a_process_that_cannot_start_names_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(local.sys, "executable", "/bin/false")
    heard = Heard()
    (outcome,) = LocalEngine(1).run([job_of(tmp_path / "run")], heard)
    assert "log.txt" in outcome.error and heard.news(tmp_path / "run") == ["began", "failed"]


def test_an_exception_in_a_callback_stops_the_processes(tmp_path, started):
    def fail(event):
        raise KeyError("the caller's own mistake")

    with pytest.raises(KeyError):
        LocalEngine(1).run([job_of(tmp_path / "run")], fail)
    assert all(process.poll() is not None for process in started)


def test_a_signal_stops_all_and_is_reported(tmp_path, monkeypatch, started):
    monkeypatch.setenv("REGARD_TOY_PAUSE", f"5:7:{tmp_path / 'go-on'}")
    monkeypatch.setattr(local, "SECONDS_BETWEEN_NEWS", 0.01)
    log = tmp_path / "run" / "log.txt"

    def release():
        until(lambda: "SIGTERM: saving" in log.read_text())
        (tmp_path / "go-on").touch()

    def interrupt(event):
        if event.news == "step" and event.step >= 3:
            threading.Thread(target=release).start()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped) as stopped:
        LocalEngine(1).run([job_of(tmp_path / "run"), job_of(tmp_path / "never", 1)], Heard(interrupt))
    assert stopped.value.exit_code == 130
    assert [process.returncode for process in started] == [128 + signal.SIGTERM]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert not (tmp_path / "run" / "outcome.json").exists() and not (tmp_path / "never").exists()


def test_the_last_step_is_that_of_the_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_step(path) == 0
    for content, step in (
        (b"", 0),
        (b'{"step": 3}\n', 3),
        (b'{"step": 3}\n{"step": 4', 3),
        (b"nonsense\n", 0),
        (b"[]\n", 0),
    ):
        path.write_bytes(content)
        assert last_step(path) == step
    path.write_bytes(b"x" * 200_000 + b'\n{"step": 7}\n')
    assert last_step(path) == 7


@pytest.mark.parametrize(
    ("cores", "jobs", "gpu", "asked", "workers", "threads"),
    [
        (2, 9, False, {}, 2, 1),
        (2, 1, False, {}, 1, 2),  # alone it may have everything
        (8, 3, False, {}, 3, 1),  # no more processes than jobs
        (8, 9, False, {"threads": 3}, 2, 3),
        (8, 9, False, {"threads": 20}, 1, 20),
        (8, 9, False, {"workers": 2}, 2, 1),  # one thread all the same: results do not depend on workers
        (8, 9, False, {"workers": 4, "threads": 4}, 4, 4),
        (8, 9, True, {}, 1, 8),
        (8, 9, True, {"workers": 2}, 2, 1),  # two with eight threads each would share the same eight cores
        (8, 9, True, {"workers": 3, "threads": 2}, 3, 2),
    ],
)
def test_the_default_is_one_process_per_core_or_one_on_a_gpu(monkeypatch, cores, jobs, gpu, asked, workers, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    found = capacity_for(jobs, gpu=gpu, **asked)
    assert (found.workers, found.threads) == (workers, threads)


def test_the_process_gets_its_threads_and_its_output_goes_to_the_log(tmp_path, monkeypatch):
    spy = tmp_path / "python"
    spy.write_text("#!/bin/sh\necho threads $OMP_NUM_THREADS\necho trouble >&2\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setattr(local.sys, "executable", str(spy))
    (outcome,) = LocalEngine(1).run([dataclasses.replace(job_of(tmp_path / "run"), threads=3)], Heard())
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "threads 3\ntrouble\n" in text and outcome.error == f"trouble (see {tmp_path / 'run' / 'log.txt'})"


def test_the_worker_is_started_as_a_module_of_this_python(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(JobProcess, "_say", lambda *_: None)
    monkeypatch.setattr(local.subprocess, "Popen", lambda command, **options: seen.append((command, options)))
    JobProcess(job_of(tmp_path / "run"), Heard())
    ((command, options),) = seen
    assert command == [sys.executable, "-m", "regard_workbench.comparison.worker", str(tmp_path / "run" / "job.json")]
    assert options["start_new_session"]  # Ctrl-C reaches the parent alone
