"""Time limits of a run: for all of it, and between two signs of progress.

>>> seconds("timeout", "5 min")
300.0
"""

from __future__ import annotations

import math
import time

from regard.errors import BadValue
from regard_workbench.training.config import budget

NEVER = "never"
HEARTBEAT = 1800.0  # seconds: longer than any batch, or than reading the data before the first batch
SECONDS_UNTIL_NAMED = 60.0  # a run without progress is reported long before it is stopped


def seconds(argument: str, given: str | float | None, default: float | None = None) -> float | None:
    """A time as one writes it: `90`, `90s`, `5 min`, `2 hours`; None for `never`, `default` where none is given."""
    if given is None:
        return default
    if isinstance(given, str) and given.strip() == NEVER:
        return None
    try:
        duration = float(given)
    except ValueError:
        duration = _with_unit(str(given))
    if not (math.isfinite(duration) and duration > 0):
        raise BadValue(
            f"{argument}: expected a time, for instance '90s', '5 min' or '2 hours', or {NEVER}, got {given!r}."
        )
    return duration


def _with_unit(given: str) -> float:
    try:
        time_budget = budget.parse(given)
    except BadValue:
        return math.nan
    return time_budget.amount if time_budget.kind == "seconds" else math.nan


def duration_text(amount: float) -> str:
    """Seconds for people, in the largest unit that leaves a whole number."""
    for unit, name in ((3600, "hour"), (60, "minute")):
        if amount >= unit and amount % unit == 0:
            return f"{amount / unit:g} {name}{'s' if amount > unit else ''}"
    return f"{amount:g} seconds"


class Limits:
    """The clock of one run: `timeout` seconds in total, `heartbeat` seconds between two signs of progress."""

    def __init__(self, timeout: float | None, heartbeat: float | None) -> None:
        self.timeout, self.heartbeat = timeout, heartbeat
        self.began = time.monotonic()
        self.beat()

    def beat(self) -> None:
        """Note progress, or the start of a process."""
        self.progress_at, self.named = time.monotonic(), False

    def exceeded(self) -> str:
        """Which limit the run exceeds, in words; empty if none."""
        instant = time.monotonic()
        if self.timeout is not None and instant - self.began > self.timeout:
            return f"it took longer than {duration_text(self.timeout)} (--timeout)"
        if self.heartbeat is not None and instant - self.progress_at > self.heartbeat:
            return f"it made no progress for {duration_text(self.heartbeat)} (--heartbeat)"
        return ""

    def silent(self) -> str:
        """A message that there is no progress, once for each such period; empty if there is nothing new."""
        if self.named or time.monotonic() - self.progress_at < SECONDS_UNTIL_NAMED:
            return ""
        self.named = True
        then = "" if self.heartbeat is None else f"; it is stopped after {duration_text(self.heartbeat)} (--heartbeat)"
        return f"no progress for {duration_text(SECONDS_UNTIL_NAMED)}{then}"
