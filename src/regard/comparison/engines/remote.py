"""What a machine of a cluster does with a job: it starts the same process as this machine would, and tells how it goes.

Where it sees the run's folder, it works there. Where it does not, it works in a folder of its own and sends the whole
run back at the end.
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

from regard.comparison.engines import archive
from regard.comparison.engines.engine import Event, News
from regard.comparison.engines.local import SECONDS_BETWEEN_LOOKS, JobProcess, stop
from regard.comparison.job import Job, Outcome
from regard.errors import BadValue

SECONDS_BETWEEN_WORDS = 10.0  # at most: silence means that this worker, not the run, is stuck
PROBE = ".probe"  # a file in the run's folder with a random text: who can read it sees the folder


@dataclass(frozen=True)
class RemoteJob:
    """A job and what goes with it to another machine."""

    job: Job
    token: str  # what the probe says; also names the folder that a worker makes for itself
    files: Mapping[str, bytes]  # those of the user, by path
    version: str  # of regard, where the errand comes from


@dataclass(frozen=True)
class RemoteMessage:
    """Something that happened, from there to here."""

    news: News
    text: str
    step: int
    worker: int = 0  # the process that says it
    group: int = 0  # the process group of the run


@dataclass(frozen=True)
class RemoteResult:
    """What a job came to; the run folder with it where the two machines share none."""

    outcome: Outcome
    parcel: bytes | None


def installed() -> str:
    """The version of regard on this machine; empty where it is not installed."""
    try:
        return version("regard")
    except PackageNotFoundError:
        return ""


def run_job(errand: RemoteJob) -> Iterator[RemoteMessage | RemoteResult]:
    """Run the job, with a word on everything that happens to it, and its return at the end.

    When it is given up in the middle, the run saves and stops first.
    """
    if installed() != errand.version:  # a machine that joined the cluster later
        raise BadValue(
            f"engine: expected regard {errand.version} on every machine, one has {installed() or 'none'}."
        )
    # The same name after a death, so that a run goes on which nobody else can see; and none that others could guess.
    own = hashlib.sha256(errand.job.folder.encode()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"regard-{errand.token}-{own}"
    shared = _content(Path(errand.job.folder) / PROBE) == errand.token.encode()
    if not shared or any(_content(Path(path)) != content for path, content in errand.files.items()):
        place.mkdir(mode=0o700, exist_ok=True)
    try:
        job = dataclasses.replace(
            errand.job,
            folder=errand.job.folder if shared else str(place / "run"),
            use=tuple(_at_hand(path, errand, place / "use") for path in errand.job.use),
        )
        outcome = yield from _watched(job)
        back = None if shared else archive.pack(Path(job.folder))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    yield RemoteResult(outcome, back)  # the very last thing: whoever has it may end the cluster


def _watched(job: Job) -> Generator[RemoteMessage, None, Outcome]:
    heard: list[Event] = []
    process = JobProcess(job, heard.append)
    outcome: Outcome | None = None
    said = time.monotonic()
    try:
        while outcome is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            outcome = process.look()
            if not heard and time.monotonic() - said > SECONDS_BETWEEN_WORDS:
                heard.append(Event(job, "step", step=process.step))
            for event in heard:
                said = time.monotonic()
                yield RemoteMessage(
                    event.news, event.text, event.step, os.getpid(), process.child.process.pid
                )
            heard.clear()
    finally:
        if outcome is None:
            stop([process])
    return outcome


def _at_hand(path: str, errand: RemoteJob, folder: Path) -> str:
    """A file of the user: where it is, if this machine has the same there; else a copy."""
    if _content(Path(path)) == errand.files[path]:
        return path
    copy = folder / hashlib.sha256(path.encode()).hexdigest()[:16] / Path(path).name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(errand.files[path])
    return str(copy)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
