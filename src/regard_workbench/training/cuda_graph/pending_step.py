"""The result of a step that the device computes while the host goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard_workbench.training.step import StepResult


class PendingStep:
    """A step that was launched on the device. `result` waits for its result, and raises what a step raises."""

    __slots__ = ("_check", "_done", "_slot", "_values")

    def __init__(self, slot: Any, done: Any, check: Callable[..., None]) -> None:
        """`slot`: memory of the host for three numbers, an array or a tensor; `done`: the event that they are there."""
        self._slot, self._done, self._check = slot, done, check
        self._values: list[float] | None = None

    @property
    def ready(self) -> bool:
        """Whether the result is available without waiting."""
        return self._values is not None or bool(self._done.query())

    def read(self) -> list[float]:
        """Wait for loss, gradient norm and whether the update was skipped, without raising."""
        if self._values is None:
            self._done.synchronize()
            self._values = self._slot.tolist()
        return self._values

    def result(self) -> StepResult:
        """Wait for the result; raise `NonFinite` if this step or one before it was skipped."""
        loss, norm, skipped = self.read()
        self._check(loss, norm, skipped)
        return StepResult(loss, norm)
