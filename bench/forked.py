"""A process as `subprocess.Popen` makes it, but by a fork of this one, which has everything loaded already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any


class Forked:
    """Runs a function, or `… -m MODULE ARGUMENTS`. Of files, the child has its standard ones and `pass_fds`."""

    def __init__(
        self,
        work: Callable[[], int] | Sequence[str],
        *,
        stdin: int | IO[bytes] | None,
        stdout: IO[bytes],
        stderr: IO[bytes],
        start_new_session: bool = True,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        assert start_new_session
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        ours = theirs = -1
        if stdin == subprocess.PIPE:
            theirs, ours = os.pipe()
        elif stdin is None:
            theirs = os.open(os.devnull, os.O_RDONLY)
        files = (theirs if theirs >= 0 else stdin.fileno(), stdout.fileno(), stderr.fileno())  # type: ignore[union-attr]
        for file in (sys.stdout, sys.stderr):
            file.flush()
        self.pid = os.fork()
        if not self.pid:
            execute(work, files, pass_fds, env)
        if theirs >= 0:
            os.close(theirs)
        if ours >= 0:
            self.stdin = os.fdopen(ours, "wb")

    def poll(self) -> int | None:
        """Its exit code, a signal's as minus its number; None while it runs."""
        if self.returncode is None:
            number, status = os.waitpid(self.pid, os.WNOHANG)
            if number:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended."""
        limit = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if limit is not None and time.monotonic() >= limit:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def children(self) -> list[int]:
        """The processes that its main thread has started and that are still there."""
        with suppress(OSError):
            return [int(one) for one in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []


def execute(
    work: Callable[[], int] | Sequence[str],
    files: tuple[int, int, int],
    kept: Sequence[int],
    env: Mapping[str, str] | None,
) -> None:
    """Do the work in this process, as a new one would, and end it."""
    code: Any = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for place, file in enumerate(files):
            os.dup2(file, place)
        # A pipe whose other end another process waits for must not stay open here.
        _close_all_but({0, 1, 2, *kept})
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        if callable(work):
            code = work()
        else:
            code = import_module(work[2]).main(list(work[3:]))
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def lives(number: int) -> bool:
    """Whether a process is there, and more than a name that nobody asked for yet."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
