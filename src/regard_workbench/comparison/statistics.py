"""Statistics over a few seeds: intervals, paired differences, Holm's correction, and what may be claimed.

A result has two sources of randomness. Another seed gives other weights: the t interval and the paired t test measure
that. Another test set gives other examples: the bootstrap (`bootstrap.py`) measures that, and the seeds again. A
difference is claimed only where both tests agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from regard_workbench.tasks.measures.metrics import SHARE, Metric

LEVEL = 0.95
ALPHA = 1 - LEVEL
WORD_ERRORS = "wer"  # how the names of word error rates begin
_NO_SPREAD = 1e-12  # relative to their size: differences that vary less are equal apart from rounding


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval; for one seed the interval is the value itself."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float:
        """Half of the width of the interval."""
        return (self.high - self.low) / 2

    def row(self) -> dict[str, float]:
        """As rows of results hold it."""
        return {"mean": self.mean, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "not finite"
        if self.count == 1:
            return f"{self.mean:.6g} (one seed: no interval)"
        return f"{self.mean:.6g} (95 % interval {self.low:.6g} to {self.high:.6g} over {self.count} seeds)"


@dataclass(frozen=True)
class PairedDifference:
    """First minus second over the seeds that both finished; the same seed means the same data order."""

    seeds: list[int]
    interval: Interval
    p: float  # of the paired t test, two-sided; NaN where it is undefined


@dataclass(frozen=True)
class Bootstrap:
    """The result of resampling test examples and seeds for a difference."""

    low: float
    high: float
    p: float  # two-sided
    resamples: int
    blocks: int


def interval(values: Sequence[float]) -> Interval:
    """The mean and its 95 % interval by Student's t; NaN if a value is not finite."""
    count = len(values)
    if not count or not all(math.isfinite(value) for value in values):
        return Interval(math.nan, math.nan, math.nan, count)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, mean, mean, 1)
    reach = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * _deviation(values, mean) / math.sqrt(count)
    return Interval(mean, mean - reach, mean + reach, count)


@dataclass(frozen=True)
class PossibleInterval:
    """An interval within what its metric can be. Student's t knows no bounds, so few seeds may leave them."""

    low: float
    high: float
    cut_low: bool
    cut_high: bool

    @property
    def empty(self) -> bool:
        """Whether the interval covers everything that is possible, and so says nothing."""
        return self.cut_low and self.cut_high

    @property
    def cut(self) -> bool:
        """Whether an end was cut."""
        return self.cut_low or self.cut_high


def possible(low: float, high: float, metric: Metric) -> PossibleInterval:
    """An interval cut to 0 and 1 for a share, to 0 for a word error rate; as it is for other metrics."""
    least, most = bounds(metric)
    return PossibleInterval(max(low, least), min(high, most), low < least, high > most)


def bounds(metric: Metric) -> tuple[float, float]:
    """The least and the largest value that a metric can have, as far as they are known."""
    if metric.unit != SHARE:
        return -math.inf, math.inf
    # Inserted words count as errors, so there may be more errors than reference words.
    return 0.0, math.inf if metric.name.startswith(WORD_ERRORS) else 1.0


CUT, TOO_FEW = "†", "‡"  # marks beside intervals
CUT_WORDS = f"{CUT} The interval would reach beyond what is possible and is cut there."
TOO_FEW_WORDS = f"{TOO_FEW} Too few seeds: the interval would cover everything that is possible."


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> PairedDifference:
    """The difference of two contestants, seed by seed; both map a seed to its result."""
    seeds = sorted(first.keys() & second.keys())
    differences = [first[seed] - second[seed] for seed in seeds]
    estimate = interval(differences)
    return PairedDifference(seeds, estimate, _t_test(differences, estimate, [*first.values(), *second.values()]))


def _t_test(differences: Sequence[float], found: Interval, sizes: Sequence[float]) -> float:
    if found.count < 2 or not math.isfinite(found.mean):
        return math.nan
    deviation = _deviation(differences, found.mean)
    largest = max(abs(size) for size in sizes)
    if deviation <= _NO_SPREAD * largest:
        # The difference is the same for every seed: if it is zero, p is 1; otherwise t is undefined without variance.
        return 1.0 if abs(found.mean) <= _NO_SPREAD * largest else math.nan
    statistic = found.mean / (deviation / math.sqrt(found.count))
    return float(2 * stdtr(found.count - 1, -abs(statistic)))


def _deviation(values: Sequence[float], mean: float) -> float:
    """The standard deviation of a sample."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Verdict:
    """What can be claimed about two contestants: which is better (None: neither), and one sentence."""

    better: str | None
    sentence: str


def judge(
    names: tuple[str, str],
    difference: PairedDifference,
    bootstrap: Bootstrap | None,
    corrected: tuple[float, float],
    metric: Metric,
) -> Verdict:
    """Say what can be claimed. `corrected`: p of the t test and of the bootstrap after Holm's correction."""
    estimate, (p_seeds, p_examples) = difference.interval, corrected
    if not difference.seeds:
        return Verdict(None, "Nothing can be claimed: no seed finished with both.")
    if not math.isfinite(estimate.mean):
        return Verdict(None, "Nothing can be claimed: a result is not finite.")
    if estimate.mean == 0:
        return Verdict(None, "No difference can be claimed: the means are equal.")
    ahead, behind = names if (estimate.mean > 0) == metric.higher_is_better else names[::-1]
    size = _amount(abs(estimate.mean), metric)
    resampled = "" if bootstrap is None or math.isnan(p_examples) else f"bootstrap over the test set {_p(p_examples)}"
    if len(difference.seeds) == 1:
        more = f" ({resampled})" if resampled else ""
        return Verdict(
            None, f"One seed says nothing about the models; of these two networks {ahead} was ahead by {size}{more}."
        )
    seeds = f"{len(difference.seeds)} seeds"
    if math.isnan(p_seeds):
        return Verdict(
            None,
            f"No difference can be claimed: {ahead} was ahead by exactly {size} in each of {seeds}, and the t test is "
            "undefined without variance.",
        )
    low, high = sorted((abs(estimate.low), abs(estimate.high)))
    by_seeds, by_examples = p_seeds < ALPHA, not resampled or p_examples < ALPHA
    tests = f"{_p(p_seeds)} over {seeds}" + (f", {resampled}" if resampled else "")
    if by_seeds and by_examples:
        return Verdict(
            ahead,
            f"{ahead} is better than {behind} by {size} (95 % interval {_amount(low, metric)} to "
            f"{_amount(high, metric)}; {tests}).",
        )
    if by_seeds:
        return Verdict(
            None,
            f"No difference can be claimed beyond this test set: {ahead} was ahead by {size} consistently over seeds, "
            f"but perhaps not on other test examples ({tests}).",
        )
    if estimate.half < abs(estimate.mean):  # one test alone would claim it
        return Verdict(
            None,
            f"No difference can be claimed: {ahead} was ahead by {size} (95 % interval {_amount(low, metric)} to "
            f"{_amount(high, metric)}), but among so many comparisons one may look so by chance ({tests}, corrected "
            "for their number).",
        )
    return Verdict(
        None,
        f"No difference can be claimed: {ahead} was ahead by {size} on average, but with the variance of these {seeds} "
        f"only differences above about {_amount(estimate.half, metric)} would show ({tests}).",
    )


def _amount(value: float, metric: Metric) -> str:
    """A difference: of shares in percentage points."""
    return f"{100 * value:.2f} points" if metric.unit == SHARE else f"{value:.3g}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
