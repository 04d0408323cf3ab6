"""Runs on a Ray cluster: each job is a Ray task, which starts the same process as the local engine.

When a worker or a machine dies, the job is submitted again and resumes from its last checkpoint. Results equal those of
the local engine, since the same program runs with the same number of threads.
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

from regard.errors import BadValue
from regard_workbench.comparison import previous_runs, worker
from regard_workbench.comparison.engines import archive, remote
from regard_workbench.comparison.engines.cluster import Cluster, machines, refuse_too_large
from regard_workbench.comparison.engines.engine import Event
from regard_workbench.comparison.engines.local import RESTARTS, SECONDS_TO_SAVE, capacity_for
from regard_workbench.comparison.engines.remote import RemoteJob, RemoteMessage, RemoteResult
from regard_workbench.comparison.engines.stopped import ClusterLost, Stopped
from regard_workbench.comparison.engines.supervisor import kill
from regard_workbench.comparison.job import Job, Outcome
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.run_folder import durable
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.signals import Signals

if TYPE_CHECKING:
    from ray import ObjectRefGenerator

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STOP = SECONDS_TO_SAVE + 15.0  # a worker that had to kill its run still has to report it
SECONDS_LATE = 60.0  # for messages in transit

_STUCK = "its worker is stuck: it sent no message for longer than --heartbeat allows"

OnEvent = Callable[[Event], None]


@dataclass
class RemoteRun:
    """A job that was submitted to the cluster."""

    number: int
    remote_job: RemoteJob
    messages: ObjectRefGenerator
    deaths: int = 0
    death: str = ""  # why its last worker died, until the next one has begun
    heard: float | None = None  # when its worker last sent a message; None: not begun
    worker: int = 0  # process id of the worker, on its machine
    group: int = 0  # process group of the run, on its machine

    @property
    def job(self) -> Job:
        """The job."""
        return self.remote_job.job


class RayEngine:
    """Runs jobs on the Ray cluster at `address`, or on one started here.

    The latter has `cores`, by default as many as this machine and at least the `threads` of one run; it ends with
    `close` or with this process.
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
        """Disconnect from the cluster."""
        self.cluster.close()

    def run(self, jobs: Iterable[Job], on_event: OnEvent) -> list[Outcome]:
        """Run all jobs and return their outcomes in the order of the jobs; raises `Stopped` after a signal."""
        import ray

        self.cluster.open()  # first: Ray installs signal handlers, too, and ours must be installed last
        token = secrets.token_hex(16)
        outcomes: dict[int, Outcome] = {}
        sent: list[RemoteRun] = []
        # Ray prints messages about its workers to stdout, which is for results.
        with redirect_stdout(sys.stderr), Signals(lambda: self._kill(sent)) as signals:
            try:
                for number, job in enumerate(jobs):
                    if (outcome := previous_runs.finished(job)) is not None:
                        outcomes[number] = outcome
                        on_event(Event(job, "done", "finished by an earlier command", outcome.steps))
                    else:
                        sent.append(_send(number, job, token))
                while sent and not signals.received:
                    self.cluster.raise_if_lost()
                    ready, _ = ray.wait([remote_run.messages for remote_run in sent], timeout=SECONDS_BETWEEN_LOOKS)
                    for remote_run in [
                        remote_run for remote_run in sent if any(remote_run.messages is messages for messages in ready)
                    ]:
                        if (outcome := _listen(remote_run, on_event)) is not None:
                            outcomes[remote_run.number] = outcome
                            sent.remove(remote_run)
                    for remote_run in [remote_run for remote_run in sent if _stuck(remote_run)]:
                        ray.cancel(remote_run.messages, force=True)
                        outcomes[remote_run.number] = _failed(remote_run, _STUCK, on_event)
                        sent.remove(remote_run)
            except ClusterLost:
                self._kill(sent)
                for remote_run in sent:
                    _remove_probe(remote_run.job)
                sent.clear()  # no worker is left to cancel
                raise
            finally:
                _cancel(sent)
            if signals.received:
                raise Stopped(signals.received)
        return [outcomes[number] for number in sorted(outcomes)]

    def _kill(self, sent: Iterable[RemoteRun]) -> None:
        """Kill every process of the jobs if they run on this machine; elsewhere Ray ends them."""
        if self.cluster.started_here:
            for remote_run in list(sent):
                if remote_run.worker:
                    with suppress(ProcessLookupError):
                        os.kill(remote_run.worker, signal.SIGKILL)  # first, or it would restart the run
                    kill(remote_run.group)


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
    remote_job = RemoteJob(job, token, files, remote.installed())
    return RemoteRun(number, remote_job, _submit(remote_job))


def _submit(remote_job: RemoteJob) -> ObjectRefGenerator:
    """Submit the task. Ray's own retries are off: they would not be reported."""
    job = remote_job.job
    messages: ObjectRefGenerator = (
        _task()
        .options(num_returns="streaming", max_retries=0, num_cpus=job.threads, num_gpus=_gpus(job))
        .remote(remote_job)
    )
    return messages


@functools.cache
def _task() -> Any:
    """The remote function, made once: Ray distributes it again for each new one."""
    import ray

    return ray.remote(remote.run_job)


def _gpus(job: Job) -> int:
    device = str(job.settings.get("device") or "auto")
    any_gpu = any(machine["Resources"].get("GPU", 0) >= 1 for machine in machines())
    return int(device.startswith("cuda") or (device == "auto" and any_gpu))


def _listen(one: RemoteRun, on_event: OnEvent) -> Outcome | None:
    """Handle the next message of a job; returns its outcome if that was the last."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        message = ray.get(next(one.messages))
    except RayTaskError as trouble:  # our own code raised there, and would again
        return _failed(one, worker.reason(trouble.cause or trouble), on_event)
    except StopIteration:
        return _resubmit(one, "it ended without a message", on_event)
    except RayError as death:
        first = worker.reason(death).split(". ")[0]  # the rest points to Ray's own logs
        return _resubmit(one, first, on_event)
    if isinstance(message, RemoteResult):
        return _store(one.job, message)
    one.heard, one.worker, one.group = time.monotonic(), message.worker, message.group
    if one.death and message.news == "began":
        message = RemoteMessage("again", f"{one.death}; {message.text or 'starts over'}", message.step)
        one.death = ""
    on_event(Event(one.job, message.news, message.text, message.step))
    return None


def _stuck(one: RemoteRun) -> bool:
    """Whether a worker that has begun sent no message for longer than a run may go without progress."""
    if one.heard is None or one.job.heartbeat is None:
        return False
    return time.monotonic() - one.heard > one.job.heartbeat + SECONDS_LATE


def _resubmit(one: RemoteRun, why: str, on_event: OnEvent) -> Outcome | None:
    if one.deaths >= RESTARTS:
        return _failed(one, f"its worker died {1 + RESTARTS} times, last: {why}", on_event)
    one.deaths, one.death = one.deaths + 1, why
    one.heard, one.worker, one.group = None, 0, 0
    try:
        refuse_too_large(one.job.threads, _gpus(one.job))
    except BadValue as nowhere:  # the last machine that is large enough died
        return _failed(one, f"{why}; {nowhere}", on_event)
    one.messages = _submit(one.remote_job)
    return None


def _failed(one: RemoteRun, why: str, on_event: OnEvent) -> Outcome:
    outcome = worker.failed(one.job, why)
    outcome.save()
    _remove_probe(one.job)
    on_event(Event(one.job, "failed", why, outcome.steps))
    return outcome


def _store(job: Job, result: RemoteResult) -> Outcome:
    """Put a finished run into its folder, as if it had run here."""
    run = RunFolder(Path(job.folder))
    if result.archive is not None:
        archive.unpack(result.archive, run.path)
        if run.exists:  # not if it failed before training began
            run.write_config(dataclasses.replace(complete(run.initial_settings()), out=job.folder))
    _remove_probe(job)
    previous_runs.note(job)
    outcome = dataclasses.replace(result.outcome, folder=job.folder, command=worker.command_of(job))
    outcome.save()
    return outcome


def _cancel(sent: Iterable[RemoteRun]) -> None:
    """Ask all runs to save and stop, and wait for them."""
    import ray
    from ray.exceptions import RayError

    left = list(sent)
    for remote_run in left:
        ray.cancel(remote_run.messages)
        _remove_probe(remote_run.job)
    limit = time.monotonic() + SECONDS_TO_STOP
    while left and time.monotonic() < limit:
        ready, _ = ray.wait([remote_run.messages for remote_run in left], timeout=SECONDS_BETWEEN_LOOKS)
        for remote_run in [
            remote_run for remote_run in left if any(remote_run.messages is messages for messages in ready)
        ]:
            try:
                ray.get(next(remote_run.messages))
            except (RayError, StopIteration):  # it has stopped
                left.remove(remote_run)
    for remote_run in left:
        ray.cancel(remote_run.messages, force=True)


def _remove_probe(job: Job) -> None:
    (Path(job.folder) / remote.PROBE).unlink(missing_ok=True)
