"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1: the first asks the loop to save and stop, the second quits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

# A terminal that closes says SIGHUP, a scheduler that takes a machine back often SIGUSR1. Windows has neither.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
ASKING = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)


class Interrupted(Exception):
    """A signal came in the middle of a step."""


class Signals:
    """Inside `with Signals() as signals:`, `signals.received` is the first signal that came, 0 before.

    `before_quitting` is called when the second one ends the process; it must not wait for anything.
    """

    def __init__(self, before_quitting: Callable[[], None] = lambda: None) -> None:
        self.received = 0
        self._before_quitting = before_quitting
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # Python hears signals nowhere else
            # What is ignored stays so: `nohup regard train …` goes on when its terminal closes.
            asking = [number for number in ASKING if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._heard) for number in asking}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            # Not an exception: one raised inside a save or a C extension could still be swallowed.
            _say("\x1b[?25h\n" if os.isatty(2) else "")  # a progress bar hides the cursor
            with suppress(Exception):  # whatever fails there, the process ends
                self._before_quitting()
            os._exit(128 + number)
        self.received = number
        name = signal.Signals(number).name
        _say(f"\n{name}: saving after this batch; once more to quit without saving.\n")


def _say(text: str) -> None:
    try:
        os.write(2, text.encode())
    except OSError:  # a terminal that is gone: what the run still says must not keep it from saving
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            if os.isatty(1) or _hung_up(1):
                os.dup2(nowhere, 1)
            os.close(nowhere)


def _hung_up(handle: int) -> bool:
    try:
        os.write(handle, b"")
    except OSError:
        return True
    return False
