"""Signs of progress: each batch, of training or of a measurement, gives one to whoever listens.

A process that lives but makes no progress (a deadlock, an endless loop, a call that never returns) gives none.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[], None]] = []


def listen(hear: Callable[[], None]) -> None:
    """Have `hear` called at every beat of this process from now on."""
    _listeners.append(hear)


def beat() -> None:
    """Say that there was progress."""
    for hear in _listeners:
        hear()
