"""What a comparison's numbers allow one to say: who may be the best, who is out, what to take.

The race: a contestant is struck off if some rival was ahead of it by a paired t test over the seeds and by a bootstrap
over the test examples, each with p < 0.05 / (k − 1) for k contestants. The one that is truly best loses to any of its
k − 1 rivals by chance with a probability of at most 0.05 in all (Bonferroni), so with 95 % confidence it is among those
that are left, whoever it is.

What to take: of those left, within a margin of the best mean, the fastest; where several are about as fast, the best of
these.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from regard.comparison.comparison import Comparison
from regard.comparison.results import Row, pairs
from regard.comparison.statistics import ALPHA, LEVEL

from .entries import Entry, entries
from .question import Question
from .reading import finish
from .yardsticks import Yardstick

AS_FAST = 0.10  # speeds this close, as a part of the faster, are one speed
NOT_LEARNT, PARTLY = 0.10, 0.50  # of the way from guessing to the best
ROUNDING = 1e-6  # of a number: less is no difference
UNSTEADY = 4.0  # a range over seeds that is so many times the usual one


@dataclass(frozen=True)
class Verdict:
    """A question and what its comparison says."""

    question: Question
    comparison: Comparison
    everyone: list[Entry]  # the best first
    struck: dict[str, str]  # label → that of the rival that leads it by most
    close: list[Entry]  # in the race and within the margin, the best first
    take: Entry | None  # None: nobody learnt the job
    needed: (
        float | None
    )  # the difference that these seeds would have shown, in the middle of all rivals of the best
    yardsticks: list[Yardstick]

    @property
    def best(self) -> Entry:
        """By its mean."""
        return self.everyone[0]

    @property
    def metric(self) -> str:
        """The number that decides."""
        return str(self.best.row["decides"])

    @property
    def higher(self) -> bool:
        """Whether more of it is better."""
        return bool(self.best.row["higher_is_better"])

    @property
    def racing(self) -> list[Entry]:
        """Those that may be the best."""
        return [entry for entry in self.everyone if entry.label not in self.struck]

    @property
    def guess(self) -> Yardstick | None:
        """What is reached without having learnt anything."""
        return next((one for one in self.yardsticks if one.guess), None)

    @property
    def unbeaten(self) -> list[Yardstick]:
        """The yardsticks that not even the best passes."""
        return [one for one in self.yardsticks if not self.better(self.best, one.value)]

    def progress(self, entry: Entry) -> float:
        """How far an entry came on the way from guessing to the best; 1 where guessing is not known."""
        if self.guess is None or self.best.mean == self.guess.value:
            return 1.0
        return (entry.mean - self.guess.value) / (self.best.mean - self.guess.value)

    def better(self, entry: Entry, value: float) -> bool:
        """Whether an entry's mean is better than a value."""
        return entry.mean > value if self.higher else entry.mean < value

    @property
    def front(self) -> list[Entry]:
        """Those to which nobody is ahead in quality and about as fast, or faster; the fastest last."""
        timed = [entry for entry in self.everyone if entry.speed]
        found: list[Entry] = []
        for entry in timed:  # the best first, so that only those before it can beat it
            if all(other.speed < (1 - AS_FAST) * entry.speed for other in found):
                found.append(entry)
        return found

    @property
    def alike(self) -> list[list[Entry]]:
        """Those whose seeds all agree but for rounding, where there are any."""
        groups: list[list[Entry]] = []
        for entry in self.everyone:
            home = next((group for group in groups if _agree(group[0], entry)), None)
            groups.append([entry]) if home is None else home.append(entry)
        return [group for group in groups if len(group) > 1]

    @property
    def learning(self) -> float:
        """The share of runs whose last checkpoint was the best: they had not finished learning."""
        done = [run for run in self.comparison.outcomes if not run.error]
        return sum(run.best_step == run.steps for run in done) / len(done)

    @property
    def wasteful(self) -> list[Entry]:
        """Those that are slower than what is taken and no better, the slowest first."""
        if self.take is None:
            return []
        limit = self.take.speed * (1 - AS_FAST)
        found = [
            entry
            for entry in self.everyone
            if 0 < entry.speed < limit
            and not self.better(entry, self.take.mean)
            and self.progress(entry) >= NOT_LEARNT
        ]
        return sorted(found, key=lambda entry: entry.speed)

    @property
    def unsteady(self) -> list[Entry]:
        """Those whose seeds lie much further apart than is usual here."""
        ranges = {
            entry.label: max(entry.seeds.values()) - min(entry.seeds.values()) for entry in self.everyone
        }
        usual = statistics.median(ranges.values())
        return [
            entry
            for entry in self.everyone
            if len(entry.seeds) > 1
            and ranges[entry.label] > UNSTEADY * usual
            and not self.question.margin.allows(
                self.best.mean - ranges[entry.label], self.best.mean, higher_is_better=True
            )
        ]


def _agree(one: Entry, other: Entry) -> bool:
    return one.seeds.keys() == other.seeds.keys() and all(
        math.isclose(number, other.seeds[seed], rel_tol=ROUNDING) for seed, number in one.seeds.items()
    )


def judge(question: Question, comparison: Comparison, yardsticks: Sequence[Yardstick] = ()) -> Verdict:
    """All that is said of a question, from the numbers of its comparison."""
    everyone = entries(comparison)
    higher = bool(everyone[0].row["higher_is_better"])
    distinct = _only(comparison, everyone)
    found = pairs(distinct, finish) if len(everyone) > 1 else []
    best = everyone[0]
    struck = strikes(found, len(everyone), higher_is_better=higher, tiny=ROUNDING * abs(best.mean))
    close = [
        entry
        for entry in everyone
        if entry.label not in struck
        and question.margin.allows(entry.mean, best.mean, higher_is_better=higher)
    ]
    guess = next((one.value for one in yardsticks if one.guess), None)
    close = close or [best]  # a rival that lacks a seed may lead it on the others
    learnt = guess is None or (best.mean > guess if higher else best.mean < guess)
    return Verdict(
        question, comparison, everyone, struck, close, take(close) if learnt else None,
        _needed(found, best.label, len(everyone)), list(yardsticks),
    )  # fmt: skip


def strikes(found: Sequence[Row], count: int, *, higher_is_better: bool, tiny: float = 0.0) -> dict[str, str]:
    """Who is struck off, and by whom: of several rivals the one furthest ahead. `tiny` differences are rounding."""
    lead: dict[str, tuple[float, str]] = {}
    for pair in found:
        mean = pair["difference"]["mean"]
        if not mean or abs(mean) <= tiny or _p(pair) >= ALPHA / (count - 1):
            continue
        ahead, behind = pair["first"], pair["second"]
        if (mean > 0) != higher_is_better:
            ahead, behind = behind, ahead
        lead[behind] = max(lead.get(behind, (0.0, "")), (abs(mean), ahead))
    return {behind: rival for behind, (_, rival) in lead.items()}


def _p(pair: Row) -> float:
    """The larger p of both tests. Where all seeds differ by exactly the same, there is only the bootstrap's."""
    if len(pair["seeds"]) < 2:
        return 1.0
    made: list[float] = [p for p in (pair["p"], (pair["bootstrap"] or {}).get("p")) if p is not None]
    return max(made, default=1.0)


def take(close: Sequence[Entry]) -> Entry:
    """The best of those that are about as fast as the fastest; the best of all where nothing was timed."""
    fastest = max(entry.speed for entry in close)
    return next(entry for entry in close if entry.speed >= fastest * (1 - AS_FAST))


def _only(comparison: Comparison, everyone: Sequence[Entry]) -> Comparison:
    """The comparison with one contestant for each entry, so that nothing is tested twice."""
    labels = {entry.label for entry in everyone}
    chosen = [one for one in comparison.contestants if one.label in labels]
    return Comparison(
        comparison.task, comparison.settings, chosen, comparison.seeds, comparison.outcomes, comparison.costs,
        comparison.left_out, comparison.budget, comparison.command, comparison.out,
    )  # fmt: skip


def _needed(found: Sequence[Row], best: str, count: int) -> float | None:
    """How far from the best a rival had to be for the t test to see it, in the middle of all rivals."""
    reaches = []
    for pair in found:
        degrees, over = len(pair["seeds"]) - 1, pair["difference"]
        if best in (pair["first"], pair["second"]) and degrees and over["mean"] is not None:
            usual, strict = (float(stdtrit(degrees, 1 - a / 2)) for a in (1 - LEVEL, ALPHA / (count - 1)))
            reaches.append((over["high"] - over["low"]) / 2 * strict / usual)
    return statistics.median(reaches) if reaches else None
