"""How fast each contestant converges: steps and seconds until its validation score first reaches a common target.

Without `--target` the target is the lowest best score of all finished runs (the highest, where lower is better): the
best score that every run reaches. A score counts at the step at which it was validated; nothing is interpolated.

Seconds are those steps at the contestant's steps per second, which were measured one contestant at a time. Where that
was not measured they are the seconds that the run itself recorded, without its validations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import BadValue
from regard_workbench.comparison.comparison import Comparison, histories
from regard_workbench.comparison.statistics import interval
from regard_workbench.figures.history import Series
from regard_workbench.tasks.measures.metrics import SHARE, Metric

_NONE = Series({}, np.empty(0))
Run = tuple[str, int]  # a contestant's label and a seed


@dataclass(frozen=True)
class Convergence:
    """The target, and when each run first reached it."""

    target: float | None  # None: no run has validation scores
    given: bool  # by the user; else it is the best score that every run reaches
    steps: dict[Run, float]  # NaN: never
    seconds: dict[Run, float]

    def row(self, label: str, warnings: list[str]) -> dict[str, Any]:
        """The fields of a contestant's row; a seed that never reached the target leaves no mean, and a warning."""
        never = [str(seed) for (who, seed), step in self.steps.items() if who == label and math.isnan(step)]
        if never:
            warnings.append(
                f"validation never reached the target of {self.target:.6g} with seed {', '.join(never)}, so steps and "
                "seconds to it have no mean"
            )
        return {
            "target": self.target,
            "target_given": self.given,
            "steps_to_target": _over_seeds(self.steps, label),
            "seconds_to_target": _over_seeds(self.seconds, label),
        }


def convergence(comparison: Comparison, metric: Metric) -> Convergence:
    """When each finished run first reached the target on validation."""
    finished = {(run.contestant.label, run.seed) for run in comparison.outcomes if not run.error}
    scores = {
        (run.label, run.seed): run.validation[metric.name]
        for run in histories(comparison)
        if (run.label, run.seed) in finished and len(run.validation.get(metric.name, _NONE).values)
    }
    target = comparison.target
    if target is None:
        target = common_target([series.values.tolist() for series in scores.values()], metric.higher_is_better)
    if target is None:
        return Convergence(None, False, {}, {})
    steps: dict[Run, float] = {}
    seconds: dict[Run, float] = {}
    for run, series in scores.items():
        at = first_reached(series.values.tolist(), target, metric.higher_is_better)
        cost = comparison.costs.get(run[0])
        steps[run] = math.nan if at is None else float(series.at["step"][at])
        if cost is not None:
            seconds[run] = steps[run] / cost.steps_per_second
        else:
            clock = series.at.get("seconds")
            seconds[run] = math.nan if at is None or clock is None else float(clock[at])
    return Convergence(target, comparison.target is not None, steps, seconds)


def common_target(scores: Sequence[Sequence[float]], higher_is_better: bool) -> float | None:
    """The best score that every run reaches: the worst of their best ones."""
    best = [max(run_scores) if higher_is_better else min(run_scores) for run_scores in scores]
    if not best:
        return None
    return min(best) if higher_is_better else max(best)


def first_reached(scores: Sequence[float], target: float, higher_is_better: bool) -> int | None:
    """The index of the first score that is at least as good as the target."""
    reached = (score >= target if higher_is_better else score <= target for score in scores)
    return next((index for index, good in enumerate(reached) if good), None)


def read_target(given: str | float | None, metric: Metric) -> float | None:
    """A target as a user writes it: a number, or for shares a percentage such as 95%."""
    if given is None:
        return None
    text = str(given).strip()
    percent = text.endswith("%") and metric.unit == SHARE
    expected = "a number from 0 to 1, or a percentage such as 95%" if metric.unit == SHARE else "a number"
    try:
        value = float(text.removesuffix("%")) / 100 if percent else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (metric.unit == SHARE and not 0 <= value <= 1):
        raise BadValue(f"target: the validation {metric.name} to reach is {expected}; got {given!r}.")
    return value


def _over_seeds(reached: Mapping[Run, float], label: str) -> dict[str, float] | None:
    values = [value for (who, _), value in reached.items() if who == label]
    if not values:
        return None
    return interval(values).row()
