"""The result of building a model, or the reasons why it failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Built:
    """A model, valid inputs for it, and how it was built."""

    model: Any
    inputs: dict[str, Any]
    kind: str
    rules: int  # index of the set of rules
    calls: int  # attention calls of a pass, counted by the oracle


class NotBuilt(Exception):
    """No attempt gave a model that ran."""

    def __init__(self, reasons: list[str]) -> None:
        first = [reason for reason in reasons if reason.startswith("forward")] or reasons or ["no reason"]
        super().__init__(first[0])
        self.reasons = list(dict.fromkeys(reasons))


class NoModel(Exception):
    """A configuration of a part of a model."""


class TimeIsUp(BaseException):
    """The time of one architecture is over; a BaseException, so that no library catches it."""


def attempt(make: Callable[[], Any], what: str, reasons: list[str]) -> Any:
    """The result of a function; on failure None, and the reason is recorded."""
    try:
        return make()
    except Exception as error:
        reasons.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
        return None
