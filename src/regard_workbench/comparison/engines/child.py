"""The process of a run in a process group of its own: sends heartbeats, can be asked to stop, is killed as a group."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from regard_workbench.comparison.engines.supervisor import Supervisor, kill

VARIABLE = "REGARD_HEARTBEAT"  # holds the file descriptor to which a worker writes its heartbeats
SECONDS_TO_DIE = 10.0  # after SIGKILL; a process that waits for a device may take longer
_SUPERVISOR = Supervisor()


class Child:
    """A process in a session of its own: Ctrl-C in the terminal reaches only the parent, which passes it on."""

    def __init__(
        self, command: Sequence[str], *, stdin: int | IO[bytes], stdout: IO[bytes], stderr: IO[bytes], threads: int
    ) -> None:
        self._beats, theirs = os.pipe()
        for end in (self._beats, theirs):  # neither side may block the other
            os.set_blocking(end, False)
        variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), VARIABLE: str(theirs)}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=[theirs],
                env={**os.environ, **variables},
            )
        except BaseException:
            os.close(self._beats)
            raise
        finally:
            os.close(theirs)
        self._watched = self._closed = False

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        code = self.process.poll()
        if code is None and not self._watched:
            _SUPERVISOR.watch(self.process.pid)
            self._watched = True
        return code

    def has_progressed(self) -> bool:
        """Whether it sent a heartbeat since the last call."""
        with suppress(OSError):
            return bool(os.read(self._beats, 1 << 16))
        return False

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process alone: it needs its children to finish the current batch and save."""
        if self.poll() is None:
            _SUPERVISOR.asked(self.process.pid)
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process group. Safe to call in a signal handler."""
        if self.process.returncode is None:
            kill(self.process.pid)

    def wait(self, limit: float) -> bool:
        """Wait until it ends, and kill it at `limit` on the monotonic clock; returns whether it ended by itself."""
        try:
            self.process.wait(max(0.0, limit - time.monotonic()))
            itself = True
        except subprocess.TimeoutExpired:
            itself = False
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(SECONDS_TO_DIE)
        self.close()
        return itself

    def close(self) -> None:
        """Kill what is left of the process group and close the pipes."""
        if self._closed:
            return
        self._closed = True
        if self.process.stdin is not None:
            self.process.stdin.close()
        os.close(self._beats)
        kill(self.process.pid)
        if self._watched and self.process.returncode is not None:
            _SUPERVISOR.ended(self.process.pid)
