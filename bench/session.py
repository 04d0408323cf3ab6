"""Run a list of measurements on a lent machine, a few at once, inside a limit of time.

    python -m bench.session bench/sessions/pictures.toml --seconds 560 --out outputs/session

A list (`sessions/*.toml`) holds jobs: a name, shell commands, the seconds they are expected to take, and the data sets
they read. They start in the order of the file, `together` at once (a job with `alone = true` runs by itself, so that
what it times is true); one that cannot end in time is not started. Of each job the log, the end, the last validation
and what `--json` printed are kept in `session.json`, which is rewritten whenever a job ends.

Jobs that run at once share the cores: each gets its part as torch threads. Threads that outnumber the cores wait
for each other: on an H200 with 16 cores, four trainings with 16 threads each ran at a twelfth of the speed of one.
They share the GPU through CUDA's multi-process service, where the machine has it, so that their kernels overlap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

MPS = "nvidia-cuda-mps-control"
GRACE = 5  # seconds between asking a job to end and ending it


@dataclass(frozen=True)
class Job:
    """One measurement. In `run`, {data} is the folder of the data sets; `keep` names folders to bring back."""

    name: str
    run: str
    seconds: float
    data: tuple[str, ...] = ()
    alone: bool = False
    keep: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What became of a job."""

    name: str
    command: str
    ended: str = "not started"  # then: running, done, failed (the exit code), out of time
    seconds: float = 0.0
    beside: int = 0  # how many others ran when it started
    printed: list[Any] = field(default_factory=list)  # each value of JSON on its standard output
    validation: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each run folder: the last one


@dataclass
class Running:
    """A job that has been started."""

    job: Job
    outcome: Outcome
    process: subprocess.Popen[bytes]
    files: tuple[TextIO, TextIO]
    begun: float


def read_jobs(path: Path) -> tuple[list[Job], int]:
    """The jobs of a list, and how many of them may run at once."""
    found = tomllib.loads(path.read_text())
    jobs = []
    for entry in found["job"]:
        several: dict[str, Any] = {name: tuple(entry.get(name, ())) for name in ("data", "keep")}
        jobs.append(Job(**{**entry, **several}))
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise SystemExit(f"{path}: two jobs have the same name")
    return jobs, int(found.get("together", 1))


class Session:
    """Jobs that wait, that run, and what became of all of them."""

    def __init__(self, jobs: list[Job], together: int, data: Path, out: Path, seconds: float) -> None:
        self.waiting, self.together, self.out = list(jobs), together, out
        self.until = time.monotonic() + seconds
        self.running: list[Running] = []
        self.commands = {job.name: job.run.replace("{data}", str(data)).strip() for job in jobs}
        self.outcomes = {job.name: Outcome(job.name, self.commands[job.name]) for job in jobs}
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // together))}
        out.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Start jobs as there is room, until all have ended or the time is over."""
        while self.waiting or self.running:
            self._start_what_fits()
            if not self.running:
                break
            time.sleep(0.2)
            for one in list(self.running):
                self._look_after(one)
        self.write()

    def _start_what_fits(self) -> None:
        for job in list(self.waiting):
            if any(one.job.alone for one in self.running) or len(self.running) >= self.together:
                return
            if job.alone and self.running:
                return  # it waits for the others, and later ones wait for it
            self.waiting.remove(job)
            left = self.until - time.monotonic()
            if job.seconds <= left:
                self._start(job)
            else:
                print(f"{job.name}: not started, it needs {job.seconds:g} s of {left:.0f} s left", flush=True)

    def _start(self, job: Job) -> None:
        outcome = self.outcomes[job.name]
        outcome.ended, outcome.beside = "running", len(self.running)
        files = (self.out / f"{job.name}.out").open("w"), (self.out / f"{job.name}.err").open("w")
        # A session of its own, so that everything a job started can be ended with it.
        process = subprocess.Popen(
            ["bash", "-c", self.commands[job.name]],
            stdout=files[0],
            stderr=files[1],
            start_new_session=True,
            env=self.environment,
        )
        self.running.append(Running(job, outcome, process, files, time.monotonic()))
        print(f"{job.name}: started beside {outcome.beside}", flush=True)

    def _look_after(self, one: Running) -> None:
        late = time.monotonic() > self.until
        if late:
            _end(one.process)
        code = one.process.poll()
        if code is None:
            return
        self.running.remove(one)
        for file in one.files:
            file.close()
        outcome = one.outcome
        outcome.seconds = round(time.monotonic() - one.begun, 1)
        outcome.ended = "out of time" if late else "done" if code == 0 else f"failed ({code})"
        outcome.printed = _printed(self.out / f"{one.job.name}.out")
        outcome.validation = _last_validations(outcome.command)
        for folder in one.job.keep:
            _pack(Path(folder), self.out / f"{one.job.name}-{Path(folder).name}.tar.gz")
        print(f"{one.job.name}: {outcome.ended} after {outcome.seconds} s", flush=True)
        self.write()

    def write(self) -> None:
        """Write what is known so far."""
        found = [asdict(outcome) for outcome in self.outcomes.values()]
        (self.out / "session.json").write_text(json.dumps(found, indent=1) + "\n")


@contextlib.contextmanager
def shared_gpu(wanted: bool) -> Iterator[None]:
    """Let processes use the GPU at the same time, by CUDA's multi-process service; without it they take turns."""
    if not wanted or shutil.which(MPS) is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        subprocess.run([MPS, "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run([MPS], input=b"quit\n", check=False)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a job and everything it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def _printed(path: Path) -> list[Any]:
    """Every value of JSON that begins a line, however many lines it takes."""
    text, found, at = path.read_text(errors="replace"), [], 0
    while at < len(text):
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
            found.append(value)
        except ValueError:
            pass
        at = (text.find("\n", at) + 1) or len(text)
    return found


def _last_validations(command: str) -> dict[str, dict[str, Any]]:
    """The last validation of each run folder that a command names."""
    found = {}
    for word in command.replace("'", " ").replace('"', " ").split():
        metrics = Path(word) / "metrics.jsonl"
        if not word.startswith("runs/") or not metrics.is_file():
            continue
        lines = [line for line in _printed(metrics) if isinstance(line, dict) and "validation" in line]
        if lines:
            found[word] = {"step": lines[-1].get("step"), **lines[-1]["validation"]}
    return found


def _pack(folder: Path, into: Path) -> None:
    """Everything in a folder but checkpoints, which are large."""
    if folder.is_dir():
        with tarfile.open(into, "w:gz") as archive:
            archive.add(folder, filter=lambda entry: None if "checkpoints" in Path(entry.name).parts else entry)


def main() -> None:
    """Read the command line and run a list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="a file of jobs")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the folder of the data sets")
    parser.add_argument("--seconds", type=float, default=560, help="when everything must have ended")
    parser.add_argument("--together", type=int, help="how many jobs run at once; default: what the list says")
    parser.add_argument("--only", help="names of jobs, separated by commas")
    parser.add_argument("--needs", action="store_true", help="print the data sets that the jobs read, and stop")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "outputs/session")))
    given = parser.parse_args()
    jobs, together = read_jobs(given.list)
    if given.only:
        wanted = given.only.split(",")
        unknown = set(wanted) - {job.name for job in jobs}
        if unknown:
            parser.error(f"--only: {given.list} has no job {', '.join(sorted(unknown))}")
        jobs = [job for job in jobs if job.name in wanted]
    if given.needs:
        print("\n".join(sorted({name for job in jobs for name in job.data})))
        return
    at_once = given.together or together
    with shared_gpu(at_once > 1):
        session = Session(jobs, at_once, given.data, given.out, given.seconds)
        session.run()
    sys.exit(any(outcome.ended != "done" for outcome in session.outcomes.values()))


if __name__ == "__main__":
    main()
