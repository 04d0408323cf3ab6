"""Which checkpoints of a run stay on the disk: all, the last N, or those of every N-th step.

>>> Keep.parse("every:500")
Keep(last=2, every=500)

The best checkpoint and the last one always stay, whatever the rule says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import BadValue
from regard.training.config.readers import Expected

LAST = 2  # the newest may be damaged, so the one before it stays too
WANTED = "all, a whole number of at least 1 (the last N), or every:N (each N-th step)"
_WRITTEN = re.compile(r"(every:)?\+?0*([1-9]\d{0,11})")


@dataclass(frozen=True)
class Keep:
    """The last so many (None: all of them), and those of every N-th step."""

    last: int | None = LAST
    every: int | None = None

    @classmethod
    def parse(cls, given: object) -> Keep:
        """A rule as one writes it: `all`, `5`, `every:500`."""
        words = str(given).strip()
        if words == "all":
            return cls(last=None)
        written = None if isinstance(given, bool) else _WRITTEN.fullmatch(words)
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
        """Whether what is kept reaches back to the untrained weights, which are then saved as step 0."""
        return self.last is None or self.every is not None

    def due(self, step: int) -> bool:
        """Whether the rule itself asks for a checkpoint of this step; one that was not written cannot be kept."""
        return self.every is not None and step % self.every == 0

    def chosen(self, steps: Sequence[int]) -> set[int]:
        """Those of some steps whose checkpoints stay."""
        newest = sorted(steps, reverse=True)
        return {*newest[: self.last], *(step for step in newest if self.due(step))}


def setting(given: object) -> str:
    """Read the setting `keep`: the same text for the same rule, however it was written."""
    try:
        return str(Keep.parse(given))
    except BadValue:
        raise Expected(WANTED) from None
