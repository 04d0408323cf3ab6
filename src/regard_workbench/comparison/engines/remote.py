"""What a worker of a cluster does with a job: it starts the same process as the local engine, and reports its events.

If the worker can read the run's folder, it works there. If not, it works in a temporary folder and returns the whole
run as an archive.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from regard.errors import BadValue
from regard_workbench.comparison.engines import archive
from regard_workbench.comparison.engines.engine import Event, News
from regard_workbench.comparison.engines.local import SECONDS_BETWEEN_LOOKS, JobProcess, stop
from regard_workbench.comparison.job import Job, Outcome

SECONDS_BETWEEN_MESSAGES = 10.0  # at most: longer silence means that the worker is stuck, not the run
PROBE = ".probe"  # a file with a random token in the run's folder: a worker that reads it shares the folder


@dataclass(frozen=True)
class RemoteJob:
    """A job and the data it needs on another machine."""

    job: Job
    token: str  # the content of the probe; also part of the name of the worker's temporary folder
    files: Mapping[str, bytes]  # plugin files of the user, by path
    version: str  # of regard, on the machine of the engine


@dataclass(frozen=True)
class RemoteMessage:
    """An event on the worker, sent to the engine."""

    news: News
    text: str
    step: int
    worker: int = 0  # process id of the worker
    group: int = 0  # process group of the run


@dataclass(frozen=True)
class RemoteResult:
    """The outcome of a job, and its run folder where engine and worker do not share one."""

    outcome: Outcome
    archive: bytes | None


def installed() -> str:
    """The version of regard on this machine; empty if it is not installed."""
    try:
        return version("regard")
    except PackageNotFoundError:
        return ""


def run_job(remote_job: RemoteJob) -> Iterator[RemoteMessage | RemoteResult]:
    """Run the job; yields a message for each event, and the result at the end.

    When the generator is closed early, the run saves and stops first.
    """
    if installed() != remote_job.version:  # a machine that joined the cluster after the check
        raise BadValue(
            f"engine: expected regard {remote_job.version} on every machine, one has {installed() or 'none'}."
        )
    # The same name after a restart, so that the run is resumed there; the token makes it unguessable for other users.
    digest = hashlib.sha256(remote_job.job.folder.encode()).hexdigest()[:16]
    temporary = Path(tempfile.gettempdir()) / f"regard-{remote_job.token}-{digest}"
    shared = _content(Path(remote_job.job.folder) / PROBE) == remote_job.token.encode()
    if not shared or any(_content(Path(path)) != content for path, content in remote_job.files.items()):
        temporary.mkdir(mode=0o700, exist_ok=True)
    try:
        job = dataclasses.replace(
            remote_job.job,
            folder=remote_job.job.folder if shared else str(temporary / "run"),
            use=tuple(_local_copy(path, remote_job, temporary / "use") for path in remote_job.job.use),
        )
        outcome = yield from _watched(job)
        back = None if shared else archive.pack(Path(job.folder))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    yield RemoteResult(outcome, back)  # last, because the engine may shut the cluster down as soon as it has the result


def _watched(job: Job) -> Generator[RemoteMessage, None, Outcome]:
    events: list[Event] = []
    process = JobProcess(job, events.append)
    outcome: Outcome | None = None
    sent_at = time.monotonic()
    try:
        while outcome is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            outcome = process.look()
            if not events and time.monotonic() - sent_at > SECONDS_BETWEEN_MESSAGES:
                events.append(Event(job, "step", step=process.step))
            for event in events:
                sent_at = time.monotonic()
                yield RemoteMessage(event.news, event.text, event.step, os.getpid(), process.child.process.pid)
            events.clear()
    finally:
        if outcome is None:
            stop([process])
    return outcome


def _local_copy(path: str, remote_job: RemoteJob, folder: Path) -> str:
    """The path of a plugin file: the original, if this machine has the same content there; else a copy."""
    if _content(Path(path)) == remote_job.files[path]:
        return path
    copy = folder / hashlib.sha256(path.encode()).hexdigest()[:16] / Path(path).name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(remote_job.files[path])
    return str(copy)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
