"""How long a run trains: a number of steps, tokens or seconds, and how much of it is used up.

>>> parse("5Mtokens")
Budget(kind='tokens', amount=5000000)

Only a budget in steps gives the number of steps in advance. For the others it is extrapolated: at 20 % after 100 steps,
500 are expected.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from regard.errors import BadValue
from regard_workbench.training.config.readers import normalised

if TYPE_CHECKING:  # settings and --help must not import torch
    from regard_workbench.training.config import Config
    from regard_workbench.training.loop import Position

Kind = Literal["steps", "tokens", "seconds"]
EXAMPLES = "'2000 steps', '5M tokens', '90 seconds', '5 min' or '2 hours'"
WANTED = f"a number with a unit, for instance {EXAMPLES}"
TENTHS = 10  # a run with a budget in tokens or seconds is validated and saved at each tenth

_PATTERN = re.compile(r"\s*(\d[\d_]*(?:\.\d*)?(?:[eE]\+?\d+)?)\s*([kKMGB]?)\s*([a-z]+)\s*")
_TIMES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
_UNITS: dict[str, tuple[Kind, int]] = {
    **dict.fromkeys(("step", "steps"), ("steps", 1)),
    **dict.fromkeys(("token", "tokens"), ("tokens", 1)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), ("seconds", 1)),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), ("seconds", 60)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600)),
}


@dataclass(frozen=True)
class Budget:
    """A number of steps, tokens or seconds of training."""

    kind: Kind
    amount: float  # whole for steps and tokens

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.amount:.15g} {self.kind}"

    def used(self, position: Position) -> float:
        """The steps, tokens or seconds used so far."""
        if self.kind == "steps":
            return position.step
        return position.tokens if self.kind == "tokens" else position.seconds

    def share(self, position: Position) -> float:
        """The share used so far, from 0 to 1."""
        return min(1.0, self.used(position) / self.amount) if self.amount else 1.0

    def ends(self, position: Position) -> bool:
        """Whether it is used up."""
        return self.used(position) >= self.amount

    def expected_steps(self, position: Position) -> float:
        """The expected total number of steps, extrapolated for tokens and seconds."""
        if self.kind == "steps":
            return self.amount
        share = self.share(position)
        return position.step / share if share else math.inf

    def tenths(self, position: Position) -> int:
        """The number of tenths used; always 0 for steps, where `eval_every` and `save_every` decide alone."""
        return 0 if self.kind == "steps" else int(TENTHS * self.share(position))

    def words(self, position: Position) -> str:
        """The progress as text: `120/2000`, or `120 (45 of 90 seconds)`."""
        if self.kind == "steps":
            return f"{position.step}/{self.amount}"
        return f"{position.step} ({int(self.used(position)):,} of {self.amount:,.15g} {self.kind})"


def parse(given: object) -> Budget:
    """Parse `2000steps`, `5e6 tokens`, `90s` or `5 min`."""
    match = _PATTERN.fullmatch(given) if isinstance(given, str) else None
    if match is None or match[3] not in _UNITS:
        raise BadValue(f"budget: expected {WANTED}, got {given!r}.")
    kind, unit = _UNITS[match[3]]
    amount = float(match[1]) * _TIMES[match[2]] * unit
    if not math.isfinite(amount) or (not amount and kind != "steps"):
        raise BadValue(f"budget: expected a finite number above 0, got {given!r}. Try {EXAMPLES}.")
    if kind == "seconds":
        return Budget(kind, amount)
    if amount != int(amount):
        raise BadValue(f"budget: expected a whole number of {kind}, got {given!r}. Try {EXAMPLES}.")
    return Budget(kind, int(amount))


def budget_of(config: Config) -> Budget:
    """The budget of complete settings."""
    if config.budget is not None:
        return parse(config.budget)
    assert config.steps is not None
    return Budget("steps", config.steps)


setting = normalised(parse, WANTED)  # how the setting is read
