"""Which checkpoints of a run are kept: all, the last N, or those of every N-th step.

>>> Keep.parse("every:500")
Keep(last=2, every=500)

The best checkpoint and the last one are always kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import BadValue
from regard_workbench.training.config.readers import normalised

LAST = 2  # the newest may be damaged, so the one before it is kept too
WANTED = "all, a whole number of at least 1 (the last N), or every:N (each N-th step)"
_PATTERN = re.compile(r"(every:)?\+?0*([1-9]\d{0,11})")


@dataclass(frozen=True)
class Keep:
    """Keep the `last` N checkpoints (None: all), and those of every N-th step."""

    last: int | None = LAST
    every: int | None = None

    @classmethod
    def parse(cls, given: object) -> Keep:
        """Parse `all`, `5` or `every:500`."""
        text = str(given).strip()
        if text == "all":
            return cls(last=None)
        written = None if isinstance(given, bool) else _PATTERN.fullmatch(text)
        if written is None:
            raise BadValue(f"keep: expected {WANTED}, got {given!r}.")
        number = int(written[2])
        return cls(every=number) if written[1] else cls(last=number)

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.every is not None:
            return f"every:{self.every}"
        return "all" if self.last is None else str(self.last)

    @property
    def whole_training(self) -> bool:
        """Whether the untrained weights are kept too, as the checkpoint of step 0."""
        return self.last is None or self.every is not None

    def due(self, step: int) -> bool:
        """Whether the rule requires a checkpoint of this step, so that it must be written."""
        return self.every is not None and step % self.every == 0

    def chosen(self, steps: Sequence[int]) -> set[int]:
        """The steps whose checkpoints are kept."""
        newest = sorted(steps, reverse=True)
        return {*newest[: self.last], *(step for step in newest if self.due(step))}


setting = normalised(Keep.parse, WANTED)  # how the setting is read
