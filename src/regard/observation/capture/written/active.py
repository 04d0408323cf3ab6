"""The recorder that is active in a thread as a torch function mode, and how to suspend it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily


class Recorder(TorchFunctionMode):
    """A mode that records one forward pass of one module."""

    known = False  # whether a function with an adapter was called during the pass


class _ActiveRecorder(threading.local):
    recorder: Recorder | None = None


ACTIVE = _ActiveRecorder()


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Suspend the recorder while a part of the recorded module runs."""
    suspended = ACTIVE.recorder
    if suspended is None or _get_current_function_mode() is not suspended:
        yield
        return
    ACTIVE.recorder = None
    try:
        with _pop_mode_temporarily():
            yield
    finally:
        ACTIVE.recorder = suspended
