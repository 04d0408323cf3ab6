"""The contestants of a comparison as the study counts them: those that computed the very same thing are one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from regard.comparison.comparison import Comparison
from regard.comparison.figures.style import called
from regard.comparison.job import Contestant, Outcome
from regard.comparison.results import Row, rows, runs_of
from regard.models.model import MODELS
from regard.registry import parse

COSTS = ("steps_per_second", "peak_memory_mib", "flops_per_step")


@dataclass(frozen=True)
class Entry:
    """One computation under one or several names: what it reached, and what it costs."""

    label: str
    name: str  # for people: the attention where all have one model, else the model
    twins: tuple[str, ...]  # the other names under which the same numbers came out
    row: Row  # of the table; what was timed under several names is the median
    seeds: dict[int, float]  # what each seed reached on the test
    timed: tuple[float, ...] = ()  # steps per second, as measured under each name

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the usual one first."""
        return (self.name, *self.twins)

    @property
    def mean(self) -> float:
        """Of the deciding number, over the seeds."""
        return float(self.over["mean"])

    @property
    def over(self) -> Row:
        """Mean, low and high of the deciding number."""
        found: Row = self.row["test"][self.row["decides"]]
        return found

    @property
    def speed(self) -> float:
        """Steps per second."""
        return float(self.row["steps_per_second"] or 0.0)


def entries(comparison: Comparison) -> list[Entry]:
    """Those whose finished runs all gave a number, the best first."""
    found = {row["label"]: row for row in rows(comparison)}
    names = _named(list(found.values()))
    runs = {
        one.label: [run for run in runs_of(comparison, one) if not run.error]
        for one in comparison.contestants
    }
    groups: dict[str, list[Contestant]] = {}
    for one in comparison.contestants:
        if runs[one.label] and all(run.metric in run.test for run in runs[one.label]):
            groups.setdefault(_mark(runs[one.label]), []).append(one)
    made = [_entry(group, found, names, runs) for group in groups.values()]
    higher = made[0].row["higher_is_better"]
    return sorted(made, key=lambda entry: -entry.mean if higher else entry.mean)


def _named(found: Sequence[Row]) -> dict[str, str]:
    """How people call them, by label: models without their options, attentions where all have one model."""
    bare = {row["label"]: parse(row["model"])[0] for row in found}
    return bare if len(set(bare.values())) == len(found) else called(found)


def _mark(runs: Sequence[Outcome]) -> str:
    """The same for runs that gave the same numbers with every seed, to the last digit."""
    return repr([(run.seed, sorted(run.test.items()), sorted(run.validation.items())) for run in runs])


def _entry(
    group: Sequence[Contestant],
    found: dict[str, Row],
    names: dict[str, str],
    runs: dict[str, list[Outcome]],
) -> Entry:
    usual = next((one for one in group if one.attention == _default(one.model)), group[0])
    row = dict(found[usual.label])
    for cost in COSTS:
        values = [found[one.label][cost] for one in group if found[one.label][cost] is not None]
        row[cost] = statistics.median(values) if values else None
    return Entry(
        label=usual.label,
        name=names[usual.label],
        twins=tuple(names[one.label] for one in group if one is not usual),
        row=row,
        seeds={run.seed: float(run.test[run.metric]) for run in runs[usual.label]},
        timed=tuple(sorted(found[one.label]["steps_per_second"] for one in group)),
    )


def _default(model: str) -> str:
    return MODELS[parse(model)[0]].attention_default
