"""What building a model gives, and the reasons where it gives nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Built:
    """A model, inputs that it takes, and how it came to be."""

    model: Any
    inputs: dict[str, Any]
    kind: str
    rules: int  # which set of rules
    calls: int  # attention calls of a pass, counted by the oracle


class NotBuilt(Exception):
    """No try gave a model that ran."""

    def __init__(self, reasons: list[str]) -> None:
        first = [reason for reason in reasons if reason.startswith("forward")] or reasons or ["no reason"]
        super().__init__(first[0])
        self.reasons = list(dict.fromkeys(reasons))


class NoModel(Exception):
    """A configuration that only parts of models are made from."""


class TimeIsUp(BaseException):
    """The seconds of one architecture are over; no `except Exception` of a library may catch it."""


def attempt(make: Callable[[], Any], what: str, reasons: list[str]) -> Any:
    """What a function makes, or None and the reason noted."""
    try:
        return make()
    except Exception as error:
        reasons.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
        return None
