"""How long a run may train: a number of steps, of tokens or of seconds, and how much of it is used up.

>>> parse("5Mtokens")
Budget(kind='tokens', amount=5000000)

Only a budget in steps says beforehand how many there will be. For the others the pace so far says it: at 20 % after 100
steps, 500 are expected.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from regard.errors import BadValue
from regard.training.config.readers import Expected

if TYPE_CHECKING:  # settings are read, and help is shown, without torch
    from regard.tasks.batch import Batch
    from regard.tasks.problem import Problem
    from regard.training.config import Config
    from regard.training.position import Position

Kind = Literal["steps", "tokens", "seconds"]
EXAMPLES = "'2000 steps', '5M tokens', '90 seconds', '5 min' or '2 hours'"
WANTED = f"a number with a unit, for instance {EXAMPLES}"
MARKS = 10  # a run is looked at and saved at least so often

_WRITTEN = re.compile(r"\s*(\d[\d_]*(?:\.\d*)?(?:[eE]\+?\d+)?)\s*([kKMGB]?)\s*([a-z]+)\s*")
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
    """So many steps, tokens or seconds of training."""

    kind: Kind
    amount: float  # whole for steps and tokens

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.amount:.15g} {self.kind}"

    def used(self, position: Position) -> float:
        """How many steps, tokens or seconds are used up."""
        return {"steps": position.step, "tokens": position.tokens, "seconds": position.seconds}[self.kind]

    def share(self, position: Position) -> float:
        """How much of it is used up, from 0 to 1."""
        return min(1.0, self.used(position) / self.amount) if self.amount else 1.0

    def ends(self, position: Position) -> bool:
        """Whether it is used up."""
        return self.used(position) >= self.amount

    def expected_steps(self, position: Position) -> float:
        """How many steps there will be in all; for tokens and seconds, if they go on as they did."""
        if self.kind == "steps":
            return self.amount
        share = self.share(position)
        return position.step / share if share else math.inf

    def marks(self, position: Position) -> int:
        """How many tenths are used up. Of steps none is counted: there `eval_every` and `save_every` say it all."""
        return 0 if self.kind == "steps" else int(MARKS * self.share(position))

    def words(self, position: Position) -> str:
        """Where a run stands, for people: `120/2000`, or `120 (45 of 90 seconds)`."""
        if self.kind == "steps":
            return f"{position.step}/{self.amount}"
        return f"{position.step} ({int(self.used(position)):,} of {self.amount:,.15g} {self.kind})"


def parse(given: object) -> Budget:
    """A budget as one writes it: `2000steps`, `5e6 tokens`, `90s`, `5 min`."""
    written = _WRITTEN.fullmatch(given) if isinstance(given, str) else None
    if written is None or written[3] not in _UNITS:
        raise BadValue(f"budget: expected {WANTED}, got {given!r}.")
    kind, unit = _UNITS[written[3]]
    amount = float(written[1]) * _TIMES[written[2]] * unit
    if not math.isfinite(amount) or (not amount and kind != "steps"):
        raise BadValue(f"budget: expected more than 0 and an end, got {given!r}. Try {EXAMPLES}.")
    if kind == "seconds":
        return Budget(kind, amount)
    if amount != int(amount):
        raise BadValue(f"budget: expected a whole number of {kind}, got {given!r}. Try {EXAMPLES}.")
    return Budget(kind, int(amount))


def of(config: Config) -> Budget:
    """The budget of completed settings."""
    if config.budget is not None:
        return parse(config.budget)
    assert config.steps is not None
    return Budget("steps", config.steps)


def setting(given: object) -> str:
    """Read the setting `budget`: the same text for the same budget, however it was written."""
    try:
        return str(parse(given))
    except BadValue:
        raise Expected(WANTED) from None


def positions(batch: Batch, problem: Problem) -> int:
    """How many tokens a batch holds: the real positions of its streams, and those of a text that is written."""
    found = sum(stream.count() for stream in batch.streams.values())
    if problem.answer.needs == "decoder":
        found += sum(stream.count() for stream in batch.answers.values())
    return found
