"""Signals in, heartbeats and messages out: how the outside stops a run, and how a run shows that it makes progress.

Of Ctrl-C, SIGTERM, SIGHUP and SIGUSR1, the first asks the loop to save and stop, the second quits at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

# A closing terminal sends SIGHUP, a scheduler that preempts a job often SIGUSR1. Windows has neither.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
HANDLED = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)


class Interrupted(Exception):
    """A signal arrived inside a step."""


class Signals:
    """Within `with Signals() as signals:`, `signals.received` is the first signal received, 0 for none.

    `before_quitting` is called when a second signal ends the process; it must not block.
    """

    def __init__(self, before_quitting: Callable[[], None] = lambda: None) -> None:
        self.received = 0
        self._before_quitting = before_quitting
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # Python handles signals nowhere else
            # Ignored signals stay ignored: `nohup regard train …` continues when its terminal closes.
            handled = [number for number in HANDLED if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            # No exception: one raised inside a save or a C extension could be swallowed.
            _write_stderr("\x1b[?25h\n" if os.isatty(2) else "")  # a progress bar hides the cursor
            with suppress(Exception):  # the process ends even if this fails
                self._before_quitting()
            os._exit(128 + number)
        self.received = number
        name = signal.Signals(number).name
        _write_stderr(f"\n{name}: saving after this batch; once more to quit without saving.\n")


def _write_stderr(text: str) -> None:
    try:
        os.write(2, text.encode())
    except OSError:  # the terminal is gone: redirect output, so that printing cannot keep the run from saving
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            if os.isatty(1) or _is_closed(1):
                os.dup2(null, 1)
            os.close(null)


def _is_closed(handle: int) -> bool:
    try:
        os.write(handle, b"")
    except OSError:
        return True
    return False


def to_stderr(text: str) -> None:
    """Print a message that is not a result."""
    print(text, file=sys.stderr, flush=True)


_listeners: list[Callable[[], None]] = []


def on_heartbeat(listener: Callable[[], None]) -> None:
    """Call `listener` at every heartbeat of this process from now on."""
    _listeners.append(listener)


def heartbeat() -> None:
    """Report progress: called for each batch of training or evaluation.

    A process that is alive but stuck (a deadlock, an endless loop, a call that never returns) gives no heartbeat.
    """
    for listener in _listeners:
        listener()
