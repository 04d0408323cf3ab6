"""Worker processes that are restarted when they die or hang."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.architectures.records import installed

ROOT = Path(__file__).resolve().parents[2]
GRACE = 5.0  # times the processor time a worker allows itself: after so long it is taken to hang
START = 300.0


def command(library: str, attend: str, seconds: float, gigabytes: float) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "tests.architectures.worker", library, str(seconds), str(gigabytes), attend]


class Worker:
    """One process. It is never waited for beyond `until`, a time of `time.monotonic`."""

    def __init__(self, library: str, attend: str, seconds: float, gigabytes: float, until: float) -> None:
        words = command(library, attend, seconds, gigabytes)
        self.seconds, self.until = seconds, until
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},  # beside other work
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self._next(START):
            self.stop()
            raise RuntimeError(f"the worker for {library} did not start: run {' '.join(words[1:])} to see why")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _next(self, seconds: float) -> str:
        try:
            return self.lines.get(timeout=max(0.0, min(seconds, self.until - time.monotonic())))
        except queue.Empty:
            return ""

    def examine(self, name: str) -> dict[str, Any] | None:
        """The record of an architecture; None where the process died or hung."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        except OSError:  # it died after its last answer
            return None
        line = self._next(self.seconds * GRACE)
        return json.loads(line) if line else None

    def stop(self) -> int | None:
        """End the process."""
        try:
            code: int | None = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        self.reader.join()  # it ends with the process's output
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # a name that was written but not flushed
                pipe.close()
        return code


def examine_all(
    library: str,
    names: Sequence[str],
    attend: str,
    jobs: int,
    seconds: float,
    gigabytes: float,
    told: Callable[[dict[str, Any]], None],
    total: float = float("inf"),
) -> list[dict[str, Any]]:
    """The records of architectures, in the order of their names. `told` is called with each record.

    After `total` seconds all workers are stopped, and what they had not finished has no record.
    """
    waiting: queue.Queue[str] = queue.Queue()
    for name in names:
        waiting.put(name)
    records: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()
    until = time.monotonic() + total
    failures: list[RuntimeError] = []

    def work() -> None:
        worker: Worker | None = None
        while time.monotonic() < until:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            try:
                worker = worker or Worker(library, attend, seconds, gigabytes, until)
            except RuntimeError as error:
                if time.monotonic() < until:
                    failures.append(error)
                break
            record = worker.examine(name)
            if record is None:
                code = worker.stop()
                worker = None
                if time.monotonic() >= until:
                    break
                why = "took too long and could not be interrupted" if code is None else f"the process died ({code})"
                record = {"name": name, "attend": attend, "status": "could not be built", "reason": why}
            record |= {"library": library, "with": installed(library)}
            with lock:
                records[name] = record
                told(record)
        if worker is not None:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(max(1, min(jobs, len(names))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [records[name] for name in names if name in records]
