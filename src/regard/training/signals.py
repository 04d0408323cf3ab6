"""Ctrl-C and SIGTERM: the first asks the loop to save and stop, the second quits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)


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
            self._before = {number: signal.signal(number, self._heard) for number in ASKING}
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
    with suppress(OSError):  # nobody may be reading any more
        os.write(2, text.encode())
