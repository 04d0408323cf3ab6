"""Runs on a Ray cluster: each job is a task there, which starts the same process as the local engine does.

A worker or a machine that dies costs the time since the last checkpoint: the job is given out again. The results are
those of the local engine, since the work is done by the same program with the same number of threads.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from regard.comparison import previous_runs, worker
from regard.comparison.engines import archive, remote
from regard.comparison.engines.cluster import Cluster, machines, refuse_too_large
from regard.comparison.engines.engine import Event
from regard.comparison.engines.local import AGAIN, SECONDS_TO_SAVE, capacity_for
from regard.comparison.engines.remote import RemoteJob, RemoteMessage, RemoteResult
from regard.comparison.engines.stopped import ClusterLost, Stopped
from regard.comparison.engines.supervisor import kill
from regard.comparison.job import Job, Outcome
from regard.errors import BadValue
from regard.training.config.recipe import complete
from regard.training.run_folder import durable
from regard.training.run_folder.folder import RunFolder
from regard.training.signals import Signals

if TYPE_CHECKING:
    from ray import ObjectRefGenerator

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STOP = SECONDS_TO_SAVE + 15.0  # where a run has to be killed, its worker still has to say so
SECONDS_LATE = 60.0  # for words under way

_STUCK = "its worker is stuck: nothing was heard of it for longer than --heartbeat allows"

OnEvent = Callable[[Event], None]


@dataclass
class RemoteRun:
    """A job that is being carried out somewhere."""

    number: int
    errand: RemoteJob
    words: ObjectRefGenerator
    deaths: int = 0
    death: str = ""  # of its last worker, until another has begun
    heard: float | None = None  # when its worker last said something; None: it has yet to begin
    worker: int = 0  # the process that looks after it, where it runs
    group: int = 0  # the process group of its run, where it runs

    @property
    def job(self) -> Job:
        """What was asked for."""
        return self.errand.job


class RayEngine:
    """Workers of a Ray cluster: of the one at `address`, or of one made here.

    The latter has `cores`, or as many as this machine, or at least the `threads` of one run; `close` ends it, and so
    does the end of this process.
    """

    name = "ray"

    def __init__(self, address: str | None = None, threads: int = 1, *, cores: int | None = None) -> None:
        self.cluster = Cluster(address, cores or max(threads, capacity_for(1, gpu=False).threads))

    def __enter__(self) -> RayEngine:
        self.cluster.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster."""
        self.cluster.close()

    def run(self, jobs: Iterable[Job], on_event: OnEvent) -> list[Outcome]:
        """Run all jobs and return their outcomes in the order of the jobs; `Stopped` if a signal came."""
        import ray

        self.cluster.open()  # first: Ray listens to signals, too, and the last one to say so is heard
        token = secrets.token_hex(16)
        outcomes: dict[int, Outcome] = {}
        sent: list[RemoteRun] = []
        # What Ray has to say of its workers it prints among the results; it belongs to the progress.
        with redirect_stdout(sys.stderr), Signals(lambda: self._kill(sent)) as signals:
            try:
                for number, job in enumerate(jobs):
                    if (found := previous_runs.finished(job)) is not None:
                        outcomes[number] = found
                        on_event(Event(job, "done", "as an earlier command left it", found.steps))
                    else:
                        sent.append(_send(number, job, token))
                while sent and not signals.received:
                    self.cluster.refuse_lost()
                    ready, _ = ray.wait([one.words for one in sent], timeout=SECONDS_BETWEEN_LOOKS)
                    for one in [one for one in sent if any(one.words is words for words in ready)]:
                        if (outcome := _listen(one, on_event)) is not None:
                            outcomes[one.number] = outcome
                            sent.remove(one)
                    for one in [one for one in sent if _stuck(one)]:
                        ray.cancel(one.words, force=True)
                        outcomes[one.number] = _failed(one, _STUCK, on_event)
                        sent.remove(one)
            except ClusterLost:
                self._kill(sent)
                for one in sent:
                    _unmark(one.job)
                sent.clear()  # nobody is there to be called back
                raise
            finally:
                _call_back(sent)
            if signals.received:
                raise Stopped(signals.received)
        return [outcomes[number] for number in sorted(outcomes)]

    def _kill(self, sent: Iterable[RemoteRun]) -> None:
        """End every process of the jobs at once, where they run on this machine; elsewhere Ray ends them."""
        if self.cluster.made_here:
            for one in list(sent):
                if one.worker:
                    with suppress(ProcessLookupError):
                        os.kill(one.worker, signal.SIGKILL)  # first, or it would start the run again
                    kill(one.group)


def _send(number: int, job: Job, token: str) -> RemoteRun:
    refuse_too_large(job.threads, _gpus(job))
    try:
        files = {path: Path(path).read_bytes() for path in job.use}
    except OSError as trouble:
        raise BadValue(f"--use: cannot read {trouble.filename}: {trouble.strerror}.") from None
    folder = Path(job.folder)
    with durable.reporting(folder):
        folder.mkdir(parents=True, exist_ok=True)
    durable.write(folder / remote.PROBE, token.encode())
    errand = RemoteJob(job, token, files, remote.installed())
    return RemoteRun(number, errand, _submit(errand))


def _submit(errand: RemoteJob) -> ObjectRefGenerator:
    """Have a worker begin. Ray itself must not try again: it would not say so."""
    job = errand.job
    words: ObjectRefGenerator = (
        _task()
        .options(num_returns="streaming", max_retries=0, num_cpus=job.threads, num_gpus=_gpus(job))
        .remote(errand)
    )
    return words


@functools.cache
def _task() -> Any:
    """Made once: each time, Ray would send the same function around again."""
    import ray

    return ray.remote(remote.run_job)


def _gpus(job: Job) -> int:
    device = str(job.settings.get("device") or "auto")
    there = any(one["Resources"].get("GPU", 0) >= 1 for one in machines())
    return int(device.startswith("cuda") or (device == "auto" and there))


def _listen(one: RemoteRun, on_event: OnEvent) -> Outcome | None:
    """Take the next word of a job; its outcome if that was the last."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        said = ray.get(next(one.words))
    except RayTaskError as trouble:  # our own program failed there, and would again
        return _failed(one, worker.reason(trouble.cause or trouble), on_event)
    except StopIteration:
        return _again(one, "it ended without a word", on_event)
    except RayError as death:
        first = worker.reason(death).split(". ")[0]  # the rest is a guide to Ray's own logs
        return _again(one, first, on_event)
    if isinstance(said, RemoteResult):
        return _take_in(one.job, said)
    one.heard, one.worker, one.group = time.monotonic(), said.worker, said.group
    if one.death and said.news == "began":
        said = RemoteMessage("again", f"{one.death}; {said.text or 'begins anew'}", said.step)
        one.death = ""
    on_event(Event(one.job, said.news, said.text, said.step))
    return None


def _stuck(one: RemoteRun) -> bool:
    """Whether a worker that has begun is silent for longer than it would let a run be."""
    if one.heard is None or one.job.heartbeat is None:
        return False
    return time.monotonic() - one.heard > one.job.heartbeat + SECONDS_LATE


def _again(one: RemoteRun, why: str, on_event: OnEvent) -> Outcome | None:
    if one.deaths >= AGAIN:
        return _failed(one, f"its worker died {1 + AGAIN} times, the last time so: {why}", on_event)
    one.deaths, one.death = one.deaths + 1, why
    one.heard, one.worker, one.group = None, 0, 0
    try:
        refuse_too_large(one.job.threads, _gpus(one.job))
    except BadValue as nowhere:  # what died was the last machine that is large enough
        return _failed(one, f"{why}; {nowhere}", on_event)
    one.words = _submit(one.errand)
    return None


def _failed(one: RemoteRun, why: str, on_event: OnEvent) -> Outcome:
    outcome = worker.failed(one.job, why)
    outcome.save()
    _unmark(one.job)
    on_event(Event(one.job, "failed", why, outcome.steps))
    return outcome


def _take_in(job: Job, said: RemoteResult) -> Outcome:
    """Put a finished run where it belongs, as if it had run here."""
    run = RunFolder(Path(job.folder))
    if said.parcel is not None:
        archive.unpack(said.parcel, run.path)
        if run.exists:  # not if it failed before it began
            run.write_config(dataclasses.replace(complete(run.initial_settings()), out=job.folder))
    _unmark(job)
    previous_runs.note(job)
    outcome = dataclasses.replace(said.outcome, folder=job.folder, command=worker.command_of(job))
    outcome.save()
    return outcome


def _call_back(sent: Iterable[RemoteRun]) -> None:
    """Have all runs save and stop, and wait for them."""
    import ray
    from ray.exceptions import RayError

    left = list(sent)
    for one in left:
        ray.cancel(one.words)
        _unmark(one.job)
    limit = time.monotonic() + SECONDS_TO_STOP
    while left and time.monotonic() < limit:
        ready, _ = ray.wait([one.words for one in left], timeout=SECONDS_BETWEEN_LOOKS)
        for one in [one for one in left if any(one.words is words for words in ready)]:
            try:
                ray.get(next(one.words))
            except (RayError, StopIteration):  # it has stopped
                left.remove(one)
    for one in left:
        ray.cancel(one.words, force=True)


def _unmark(job: Job) -> None:
    (Path(job.folder) / remote.PROBE).unlink(missing_ok=True)
