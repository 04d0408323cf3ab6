"""Runs on this machine: each job in a process of its own, as many at once as there are cores.

A process that dies (kill -9, out of memory) is restarted and resumes from its last checkpoint. A run that exceeds a
time limit or makes no progress is stopped, and the others continue. When this process receives a signal, it passes it
on and waits until all runs have saved; a second signal kills them. When this process dies, the runs notice it and stop.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard_workbench.comparison import previous_runs, worker
from regard_workbench.comparison.engines.child import SECONDS_TO_DIE, Child
from regard_workbench.comparison.engines.engine import Event, News
from regard_workbench.comparison.engines.stopped import Stopped
from regard_workbench.comparison.engines.supervisor import GRACE
from regard_workbench.comparison.job import Job, Outcome
from regard_workbench.comparison.limits import Limits
from regard_workbench.training.run_folder import durable
from regard_workbench.training.signals import Signals

LOG = "log.txt"
RESTARTS = 2  # of a process that died
SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_BETWEEN_NEWS = 0.5
SECONDS_TO_SAVE = GRACE  # for runs after a signal of the user; a second signal kills them
SECONDS_TO_STOP = 10.0  # for a run that exceeded a limit; progress since its last checkpoint may be lost
_TAIL = 1 << 16  # bytes; a line of metrics is shorter

OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Capacity:
    """How many processes run at once, and how many threads each has."""

    workers: int
    threads: int


def capacity_for(jobs: int, *, gpu: bool, workers: int | None = None, threads: int | None = None) -> Capacity:
    """The default for this machine: one process for each core, or one on a GPU.

    Several processes have one thread each, so that a result does not depend on how many of them run at once.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    alone = jobs == 1 or (gpu and workers in (None, 1))
    if threads is None:
        threads = cores if alone else 1
    if workers is None:
        workers = 1 if gpu else max(1, cores // threads)
    return Capacity(max(1, min(workers, jobs)), threads)


class LocalEngine:
    """Runs jobs as processes on this machine."""

    name = "local"

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def run(self, jobs: Iterable[Job], on_event: OnEvent) -> list[Outcome]:
        """Run all jobs and return their outcomes in the order of the jobs; raises `Stopped` after a signal."""
        waiting = enumerate(jobs)
        outcomes: dict[int, Outcome] = {}
        running: dict[int, JobProcess] = {}
        unsaved: list[JobProcess] = []
        with Signals(lambda: kill_all(running.values())) as signals:
            try:
                while self._fill(waiting, running, outcomes, on_event) and not signals.received:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    for number, process in list(running.items()):
                        if (outcome := process.look()) is not None:
                            outcomes[number] = outcome
                            del running[number]
            finally:
                unsaved = stop(running.values())
            if signals.received:
                raise Stopped(signals.received, [process.job for process in unsaved])
        return [outcomes[number] for number in sorted(outcomes)]

    def _fill(
        self,
        waiting: Iterator[tuple[int, Job]],
        running: dict[int, JobProcess],
        outcomes: dict[int, Outcome],
        on_event: OnEvent,
    ) -> bool:
        """Start jobs while workers are free; returns whether any job is running."""
        while len(running) < self.workers:
            number, job = next(waiting, (-1, None))
            if job is None:
                break
            if (outcome := previous_runs.finished(job)) is not None:
                outcomes[number] = outcome
                on_event(Event(job, "done", "finished by an earlier command", outcome.steps))
            else:
                running[number] = JobProcess(job, on_event)
        return bool(running)


class JobProcess:
    """The process of a job, restarted when it dies."""

    def __init__(self, job: Job, on_event: OnEvent) -> None:
        self.job, self.on_event = job, on_event
        self.log = Path(job.folder) / LOG
        self.deaths = 0
        self.step = previous_runs.steps_taken(job)
        self.news_at = 0.0
        self.begun = False
        self.limits = Limits(job.timeout, job.heartbeat)
        self.exceeded, self.kill_at = (
            "",
            0.0,
        )  # the exceeded limit, and when the process is killed if it does not stop by itself
        previous_runs.note(job)
        previous_runs.forget(job)  # before the start: a process that ends early must not leave an old outcome behind
        self._start()

    def look(self) -> Outcome | None:
        """The outcome, once there is one; reports progress until then."""
        code = self.child.poll()
        if not self.begun:
            self.begun = True
            self._say("began", f"resumes from step {self.step}" if self.step else "")
        if code is None:
            self._report_step()
            self._enforce_limits()
            if not self._defunct():
                return None
        self.child.close()
        if self.exceeded:
            return self._stopped()
        if code not in (0, worker.FAILED):  # killed, or stopped by another process
            assert code is not None
            if self.deaths < RESTARTS:
                self.deaths += 1
                self._start()
                self.step = previous_runs.steps_taken(self.job)
                self._say("again", f"{_death(code)}; resumes from step {self.step}")
                return None
            return self._failed(f"its process died {1 + RESTARTS} times, last by {_death(code)}")
        outcome = Outcome.load(self.job.folder)
        if outcome is None:
            why = self._last_log_line() if code else "its process ended with exit code 0 but without an outcome"
            return self._failed(f"{why} (see {self.log})")
        return self._ended(outcome)

    def ask_to_stop(self) -> None:
        """Ask the process to save and end."""
        self.child.ask_to_stop()

    def kill(self) -> None:
        """Kill the process group."""
        self.child.kill()

    def wait(self, limit: float) -> bool:
        """Until it has ended, or was killed at `limit` on the monotonic clock; whether it ended by itself."""
        return self.child.wait(limit)

    def _start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "regard_workbench.comparison.worker",
            str(Path(self.job.folder) / previous_runs.JOB_FILE),
        ]
        with durable.reporting(self.log), self.log.open("ab") as log:
            log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}\n".encode())
            log.flush()
            # Nothing is written to the pipe: when it closes, the child knows that this process is gone.
            self.child = Child(command, stdin=subprocess.PIPE, stdout=log, stderr=log, threads=self.job.threads)
        self.limits.beat()

    def _enforce_limits(self) -> None:
        """Report missing progress; past a limit ask the process to stop, then kill it."""
        if self.child.has_progressed():
            self.limits.beat()
        if self.exceeded:
            if time.monotonic() >= self.kill_at:
                self.child.kill()
        elif why := self.limits.exceeded():
            self.exceeded, self.kill_at = why, time.monotonic() + SECONDS_TO_STOP
            self.child.ask_to_stop()
        elif silence := self.limits.silent():
            self._say("silent", silence)

    def _defunct(self) -> bool:
        """Whether the process survived SIGKILL, waiting for a device: the other jobs must not wait for it."""
        return bool(self.exceeded) and time.monotonic() >= self.kill_at + SECONDS_TO_DIE

    def _stopped(self) -> Outcome:
        """The outcome of a run that exceeded a limit; it may have finished nevertheless."""
        if (outcome := previous_runs.finished(self.job)) is not None:
            return self._ended(outcome)
        self.step = previous_runs.steps_taken(self.job)
        return self._failed(f"{self.exceeded} and was stopped; its last checkpoint is of step {self.step}")

    def _ended(self, outcome: Outcome) -> Outcome:
        self.step = outcome.steps
        self._say("failed" if outcome.error else "done", outcome.error or _success(outcome))
        return outcome

    def _report_step(self) -> None:
        if time.monotonic() - self.news_at < SECONDS_BETWEEN_NEWS:
            return
        self.news_at = time.monotonic()
        step = last_step(Path(self.job.folder) / "metrics.jsonl")
        if step > self.step:
            self.step = step
            self._say("step")

    def _failed(self, why: str) -> Outcome:
        outcome = worker.failed(self.job, why)
        outcome.save()
        self._say("failed", why)
        return outcome

    def _last_log_line(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()

    def _say(self, news: News, text: str = "") -> None:
        self.on_event(Event(self.job, news, text, self.step))


def stop(processes: Iterable[JobProcess]) -> list[JobProcess]:
    """Ask all to save and end; those that do not within `SECONDS_TO_SAVE` are killed and returned."""
    ending = list(processes)
    for process in ending:
        process.ask_to_stop()
    limit = time.monotonic() + SECONDS_TO_SAVE
    return [process for process in ending if not process.wait(limit)]


def kill_all(processes: Iterable[JobProcess]) -> None:
    """Kill all process groups."""
    for process in list(processes):
        process.kill()


def last_step(metrics: Path) -> int:
    """The step of the last complete line of a file that another process appends to; 0 where there is none."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 0


def _success(outcome: Outcome) -> str:
    value = outcome.validation.get(outcome.metric)
    measured = "" if value is None else f", validation {outcome.metric} {value:.4g}"
    return f"{outcome.steps:,} steps{measured}"


def _death(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"{name}: the system may be out of memory" if name == "SIGKILL" else name
