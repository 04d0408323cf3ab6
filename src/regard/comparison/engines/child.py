"""A process of a run and all that it starts: gives signs of progress, is asked to stop, is killed as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from regard.comparison.engines.supervisor import Supervisor, kill

VARIABLE = "REGARD_HEARTBEAT"  # holds the number of the file that a worker writes its beats to
SECONDS_TO_DIE = 10.0  # for what was killed; one that waits for a device may take longer
_SUPERVISOR = Supervisor()


class Child:
    """A process in a session of its own: Ctrl-C in the terminal reaches its parent alone, which passes it on."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
        threads: int,
    ) -> None:
        self._beats, theirs = os.pipe()
        for end in (self._beats, theirs):  # nobody waits for the other
            os.set_blocking(end, False)
        own = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), VARIABLE: str(theirs)}
        try:
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, pass_fds=[theirs],
                env={**os.environ, **own},
            )  # fmt: skip
        except BaseException:
            os.close(self._beats)
            raise
        finally:
            os.close(theirs)
        self._watched = self._closed = False

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        code = self.process.poll()
        if code is None and not self._watched:
            _SUPERVISOR.watch(self.process.pid)
            self._watched = True
        return code

    def beaten(self) -> bool:
        """Whether it gave a sign of progress since the last call."""
        with suppress(OSError):
            return bool(os.read(self._beats, 1 << 16))
        return False

    def ask_to_stop(self) -> None:
        """Let it save and end. What it started goes on until then: it may be needed for the batch at hand."""
        if self.poll() is None:
            _SUPERVISOR.asked(self.process.pid)
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all it started, at once. Also for the handler of a signal."""
        if self.process.returncode is None:
            kill(self.process.pid)

    def wait(self, limit: float) -> bool:
        """Until it has ended, or was killed at `limit` on the monotonic clock; whether it ended by itself."""
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
        """Nothing more is wanted of it: end what it left running, and let go of its files."""
        if self._closed:
            return
        self._closed = True
        if self.process.stdin is not None:
            self.process.stdin.close()
        os.close(self._beats)
        kill(self.process.pid)
        if self._watched and self.process.returncode is not None:
            _SUPERVISOR.ended(self.process.pid)
