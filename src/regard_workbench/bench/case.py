"""What a benchmark case is: a name, a peer, a bar, and a function that measures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import RegardError, unknown_name
from regard.registry import Registry


@dataclass(frozen=True)
class Setting:
    """Where and how thoroughly to measure."""

    device: str = "cpu"
    threads: int = 2
    quick: bool = False


Ahead = Callable[[Setting], object]


class Wrong(RegardError):
    """What should be timed computes wrong numbers, so it is not timed."""


@dataclass(frozen=True)
class Measurement:
    """One measured number with its spread.

    `value` is the median of `samples` readings, `low` and `high` their quartiles. `ours` and `peer` are the
    median seconds of both, if time was measured. With several peers, `peers` has the seconds of each (or why it could
    not run) and `best` names the fastest. `details` are further numbers for the JSON output.
    """

    value: float
    low: float
    high: float
    samples: int
    ours: float | None = None
    peer: float | None = None
    impl: str = ""
    best: str = ""
    peers: Mapping[str, float | str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, readings: Sequence[float], **more: Any) -> Measurement:
        """The median of several readings with their quartiles."""
        low, middle, high = quartiles(readings)
        return cls(middle, low, high, len(readings), **more)


def quartiles(readings: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; of a single reading, that reading three times."""
    if len(readings) == 1:
        return readings[0], readings[0], readings[0]
    low, middle, high = statistics.quantiles(readings, n=4, method="inclusive")
    return low, middle, high


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
    device: str = "cpu"
    ahead: tuple[Ahead, ...] = ()  # each compiles kernels, ours or a peer's, into this machine's caches
    rank: int = 0  # lower ranks are measured first, since time may run out
    by_name: bool = False  # takes so long that it is measured only where it is named

    @property
    def bound(self) -> str:
        """The bar as text."""
        return f"{'≤' if self.at_most else '≥'} {self.bar:g} {self.unit}"

    def row(self, found: Measurement, setting: Setting) -> dict[str, object]:
        """The case and its measurement, as one record.

        A bar holds for one device; on another the number is reported and not judged (`met` is None).
        """
        judged = setting.device == self.device
        within = found.value <= self.bar if self.at_most else found.value >= self.bar
        return {
            "name": self.name,
            "work": self.work,
            "peer": found.best or self.peer,
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
            "peers": dict(found.peers),
            "details": dict(found.details),
            "trouble": None,
        }

    def failed(self, trouble: Exception, setting: Setting) -> dict[str, object]:
        """The record of a case that failed, with the reason; its bar is not met."""
        nothing = Measurement(0.0, 0.0, 0.0, 0)
        words = str(trouble) if isinstance(trouble, RegardError) else f"{type(trouble).__name__}: {trouble}"
        empty = dict.fromkeys(("measured", "low", "high"))
        met = False if setting.device == self.device else None
        return {**self.row(nothing, setting), **empty, "met": met, "trouble": words}


CASES: Registry[Case] = Registry("benchmark case")

Measure = Callable[[Setting], Measurement]


def case(
    name: str,
    *,
    work: str,
    peer: str,
    unit: str,
    at_most: float | None = None,
    at_least: float | None = None,
    device: str = "cpu",
    ahead: Ahead | tuple[Ahead, ...] = (),
    rank: int = 0,
    by_name: bool = False,
) -> Callable[[Measure], Measure]:
    """Register the decorated function as the case `name`, with a ceiling (`at_most`) or a floor (`at_least`).

    `device`: where the bar holds. `ahead`: one or several functions that compile; several can run at once.
    """
    assert (at_most is None) != (at_least is None), "a case has one bar"
    bar = at_most if at_most is not None else at_least
    assert bar is not None
    jobs = ahead if isinstance(ahead, tuple) else (ahead,)

    def register(measure: Measure) -> Measure:
        CASES.add(name, Case(name, work, peer, bar, unit, at_most is not None, measure, device, jobs, rank, by_name))
        return measure

    return register


def select(only: str | None, device: str = "cpu") -> list[Case]:
    """The cases that `only` names, by names or prefixes joined by commas; None: all of a device but the very long ones.

    `window` is the family of that name, `window-16k` a part of it. They come in the order in which `only` names them.
    Where a device has no such case, that of the other device is measured and not judged.
    """
    every = sorted((CASES[name] for name in CASES), key=lambda one: one.rank)
    on_device = [candidate for candidate in every if candidate.device == device]
    elsewhere = [candidate for candidate in every if candidate.device != device]
    if not only:
        return [candidate for candidate in on_device if not candidate.by_name]
    wanted: dict[str, Case] = {}
    for prefix in (p.strip().replace("_", "-") for p in only.split(",")):
        matching = next(filter(None, (_beginning(prefix, cases) for cases in (on_device, elsewhere))), None)
        if matching is None:
            families = {name.split("-")[0] for name in CASES}
            raise unknown_name("--only", prefix, [*families, *CASES])
        wanted.update({candidate.name: candidate for candidate in matching})
    return list(wanted.values())


def _beginning(part: str, cases: list[Case]) -> list[Case]:
    return [candidate for candidate in cases if candidate.name == part or candidate.name.startswith(f"{part}-")]
