"""What a benchmark case is: a name, a peer, a bar, and a function that measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.errors import unknown_name
from regard.registry import Registry


@dataclass(frozen=True)
class Setting:
    """Where and how thoroughly to measure."""

    device: str = "cpu"
    threads: int = 2
    quick: bool = False


@dataclass(frozen=True)
class Measurement:
    """One measured number with its spread.

    `value` is the median of `samples` readings, `low` and `high` their quartiles. `ours` and `peer` are the
    median seconds of the two sides where time was taken.
    """

    value: float
    low: float
    high: float
    samples: int
    ours: float | None = None
    peer: float | None = None
    impl: str = ""


@dataclass(frozen=True)
class Case:
    """One promised number. `at_most` tells whether the bar is a ceiling or a floor."""

    name: str
    work: str
    peer: str
    bar: float
    unit: str
    at_most: bool
    measure: Callable[[Setting], Measurement]

    def row(self, found: Measurement, setting: Setting) -> dict[str, object]:
        """The case and what was found, as one flat record.

        The bars were set for the CPU; on another device the number is reported and not judged (`met` is None).
        """
        judged = setting.device == "cpu"
        within = found.value <= self.bar if self.at_most else found.value >= self.bar
        return {
            "name": self.name,
            "work": self.work,
            "peer": self.peer,
            "measured": found.value,
            "low": found.low,
            "high": found.high,
            "samples": found.samples,
            "bar": self.bar if judged else None,
            "relation": "<=" if self.at_most else ">=",
            "unit": self.unit,
            "met": within if judged else None,
            "ours_seconds": found.ours,
            "peer_seconds": found.peer,
            "impl": found.impl,
        }


CASES: Registry[Case] = Registry("benchmark case")

Measure = Callable[[Setting], Measurement]


def case(name: str, *, work: str, peer: str, unit: str, at_most: float | None = None,
         at_least: float | None = None) -> Callable[[Measure], Measure]:  # fmt: skip
    """Register the decorated function as the case `name`, with a ceiling (`at_most`) or a floor (`at_least`)."""
    assert (at_most is None) != (at_least is None), "a case has one bar"
    bar = at_most if at_most is not None else at_least
    assert bar is not None

    def register(measure: Measure) -> Measure:
        CASES.add(name, Case(name, work, peer, bar, unit, at_most is not None, measure))
        return measure

    return register


def select(only: str | None) -> list[Case]:
    """The cases that `only` names: nothing for all, else names or families (`window`) joined by commas."""
    if not only:
        return [CASES[name] for name in CASES]
    families = {name.split("-")[0] for name in CASES}
    wanted: dict[str, Case] = {}
    for part in (p.strip().replace("_", "-") for p in only.split(",")):
        if part not in families and part not in CASES:
            raise unknown_name("--only", part, [*families, *CASES])
        for name in CASES:
            if name == part or name.split("-")[0] == part:
                wanted[name] = CASES[name]
    return list(wanted.values())
