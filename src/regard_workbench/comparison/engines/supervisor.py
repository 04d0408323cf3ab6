"""Kills the process groups that a process started, after that process has died.

A worker stops by itself when its parent is gone, but not one that hangs inside a library, where no Python code runs.
The supervisor is a small process of its own, which reads from its parent:

    watch 123      a process group was started
    asked 123      it was asked to stop
    ended 123      it has ended

When its input ends, it kills the groups that were asked to stop, and the others if they do not end in time. This file
is also the program of that process, so it imports only the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

GRACE = 60.0  # seconds for a worker to finish its batch and save
SECONDS_BETWEEN_LOOKS = 0.1


class Supervisor:
    """The supervisor of this process, started with the first group."""

    def __init__(self) -> None:
        self._owner = self._process = 0
        self._pipe = -1
        self._groups: dict[int, bool] = {}  # by group: whether it was asked to stop

    def watch(self, group: int) -> None:
        """Watch a group that was started."""
        self._groups[group] = False
        if not self._lives():
            self._start()
        self._tell("watch", group)

    def asked(self, group: int) -> None:
        """Note that a group was asked to stop."""
        self._groups[group] = True
        self._tell("asked", group)

    def ended(self, group: int) -> None:
        """Forget a group that has ended."""
        self._groups.pop(group, None)
        self._tell("ended", group)

    def _tell(self, word: str, group: int) -> None:
        if self._pipe >= 0:
            with suppress(OSError):  # the supervisor was killed; `watch` starts another
                os.write(self._pipe, f"{word} {group}\n".encode())

    def _lives(self) -> bool:
        if self._owner != os.getpid():  # after a fork this process has the pipe, but is not the parent
            return False
        with suppress(ChildProcessError):
            return os.waitpid(self._process, os.WNOHANG) == (0, 0)
        return False

    def _start(self) -> None:
        if self._pipe >= 0 and self._owner == os.getpid():
            os.close(self._pipe)
        theirs, self._pipe = os.pipe()
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(GRACE)]
        # Its own process group, so that Ctrl-C does not reach it. No stdout: it would keep our readers' pipe open.
        self._process = os.posix_spawn(
            command[0],
            command,
            os.environ,
            setpgroup=0,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
        os.close(theirs)
        self._owner = os.getpid()
        for group, stopping in self._groups.items():
            self._tell("watch", group)
            if stopping:
                self._tell("asked", group)


def kill(group: int) -> None:
    """Kill every process of a group."""
    with suppress(ProcessLookupError, PermissionError):  # it has ended already
        os.killpg(group, signal.SIGKILL)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # its id has been reused
        return False
    return True


def guard(lines: Iterable[bytes], grace: float) -> None:
    """Read until the parent is gone; then make sure that its groups end."""
    groups: dict[int, bool] = {}
    for line in lines:
        word, _, number = line.decode().strip().partition(" ")
        if word == "ended":
            groups.pop(int(number), None)
        else:
            groups[int(number)] = word == "asked"
    for group, stopping in groups.items():
        if stopping:
            kill(group)
    limit = time.monotonic() + grace
    left = list(groups)
    while (left := [group for group in left if _alive(group)]) and time.monotonic() < limit:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    for group in left:
        kill(group)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    guard(sys.stdin.buffer, float(sys.argv[1]))
