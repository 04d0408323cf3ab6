"""What a comparison's numbers allow one to say: who may be the best, who is out, what to take.

The race: a contestant is struck off if some rival was ahead of it by a paired t test over the seeds and by a bootstrap
over the test examples, each with p < 0.05 / (k − 1) for k contestants. The one that is truly best loses to any of its
k − 1 rivals by chance with a probability of at most 0.05 in all (Bonferroni), so with 95 % confidence it is among those
that are left, whoever it is.

What to take: of those left, within a margin of the best mean, the fastest; where several are about as fast, the best of
these. A contestant of which a single seed has ended is not taken while others have several.

`draw` plots quality against speed: names beside points, on white, which GitHub shows in light and dark mode.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import stdtrit

from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.report.bars import within
from regard_workbench.comparison.results import Row, deciding, pairs
from regard_workbench.comparison.statistics import ALPHA, LEVEL
from regard_workbench.figures.labels import beside
from regard_workbench.figures.style import COLOURS, INK, MUTED, Key, in_percent, logarithmic, short, style, titled
from regard_workbench.tasks.measures.metrics import SHARE, Metric
from regard_workbench.training.run_folder import durable

from .evidence import Entry, Question, Yardstick, deciding_metric, entries

RACING, STRUCK = "●", "○"  # may be the best; is struck off
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
    needed: float | None  # the difference that these seeds would have shown, in the middle of all rivals of the best
    yardsticks: list[Yardstick]

    @property
    def best(self) -> Entry:
        """By its mean."""
        return self.everyone[0]

    @property
    def metric(self) -> Metric:
        """The metric that decides, with its direction and unit."""
        return deciding([self.best.row])

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
        return entry.mean > value if self.metric.higher_is_better else entry.mean < value

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
            if 0 < entry.speed < limit and not self.better(entry, self.take.mean) and self.progress(entry) >= NOT_LEARNT
        ]
        return sorted(found, key=lambda entry: entry.speed)

    @property
    def unsteady(self) -> list[Entry]:
        """Those whose seeds lie much further apart than is usual here."""
        ranges = {entry.label: max(entry.seeds.values()) - min(entry.seeds.values()) for entry in self.everyone}
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
    higher = deciding([everyone[0].row]).higher_is_better
    distinct = _only(comparison, everyone)
    found = pairs(distinct, deciding_metric(comparison)) if len(everyone) > 1 else []
    # A single seed says nothing of luck: it is reported, and not recommended.
    several = [entry for entry in everyone if len(entry.seeds) > 1] or everyone
    best = several[0]
    struck = strikes(found, len(everyone), higher_is_better=higher, tiny=ROUNDING * abs(best.mean))
    close = [
        entry
        for entry in several
        if entry.label not in struck and question.margin.allows(entry.mean, best.mean, higher_is_better=higher)
    ]
    guess = next((one.value for one in yardsticks if one.guess), None)
    close = close or [best]  # a rival that lacks a seed may lead it on the others
    learnt = guess is None or (best.mean > guess if higher else best.mean < guess)
    return Verdict(
        question,
        comparison,
        everyone,
        struck,
        close,
        take(close) if learnt else None,
        _needed(found, best.label, len(everyone)),
        list(yardsticks),
    )


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
        comparison.task,
        comparison.settings,
        chosen,
        comparison.seeds,
        comparison.outcomes,
        comparison.costs,
        comparison.left_out,
        comparison.budget,
        comparison.command,
        comparison.out,
    )


def _needed(found: Sequence[Row], best: str, count: int) -> float | None:
    """How far from the best a rival had to be for the t test to see it, in the middle of all rivals."""
    reaches = []
    for pair in found:
        degrees, over = len(pair["seeds"]) - 1, pair["difference"]
        if best in (pair["first"], pair["second"]) and degrees and over["mean"] is not None:
            usual, strict = (float(stdtrit(degrees, 1 - a / 2)) for a in (1 - LEVEL, ALPHA / (count - 1)))
            reaches.append((over["high"] - over["low"]) / 2 * strict / usual)
    return statistics.median(reaches) if reaches else None


SIZE = (7.6, 4.4)  # inches: as wide as a page on GitHub shows it
WIDE = 4.0  # speeds that differ by more than this factor stand on a logarithmic axis
FEW = 6  # up to so many, all are shown where they are
FAR = 2.5  # of more, what lies beyond so many times the spread of the better half is shown at the edge
ROOM = 1.0  # of the spread, for intervals and yardsticks beyond it
BLUE, ORANGE = COLOURS[0], COLOURS[1]
OUT = "#737b84"


@dataclass(frozen=True)
class Dot(Key):
    """A contestant in the picture: its colour says how it fared, not who it is."""

    shade: str = INK

    @property
    def colour(self) -> str:
        """The one of its fate."""
        return self.shade


def draw(verdict: Verdict, path: Path) -> str:
    """Write the picture, the same bytes for the same numbers; returns it in words."""
    with style(), rc_context({"svg.fonttype": "path", "svg.hashsalt": "regard"}):
        figure = _figure(verdict)
        held = io.BytesIO()
        figure.savefig(held, format="svg", metadata={"Date": None, "Creator": None})
    durable.replace(path, held.getvalue())
    return _words(verdict)


def _figure(verdict: Verdict) -> Figure:
    figure = Figure(figsize=SIZE, layout="constrained", facecolor="white")
    frame = figure.add_subplot(facecolor="white")
    timed = [entry for entry in verdict.everyone if entry.speed]
    floor, ceiling = _limits(verdict, timed)
    points: list[tuple[float, float, Key]] = []
    for number, entry in enumerate(timed, 1):
        shade, speed = _shade(verdict, entry), entry.speed
        low, high = (float(entry.over[end]) for end in ("low", "high"))
        height = min(max(entry.mean, floor), ceiling)
        beyond = height != entry.mean
        if not beyond:
            frame.vlines(speed, max(low, floor), min(high, ceiling), color=shade, linewidth=1.1, alpha=0.5)
            frame.plot(
                [speed] * len(entry.seeds),
                [*entry.seeds.values()],
                "_",
                color=shade,
                markersize=5,
                alpha=0.8,
                markeredgewidth=0.9,
                zorder=3,
            )
        frame.plot(
            [speed],
            [height],
            marker="v" if beyond else "o",
            color=shade,
            markersize=7,
            zorder=4,
            markeredgewidth=1.3,
            linestyle="none",
            clip_on=False,
            markerfacecolor=shade if entry.label not in verdict.struck else "white",
        )
        name = _name(entry) + (f" ({_number(entry.mean, verdict.metric)})" if beyond else "")
        points.append((speed, height, Dot(number, entry.label, name, shade)))
    _front(frame, verdict)
    _axes(frame, verdict, [x for x, _, _ in points], (floor, ceiling))
    _yardsticks(frame, verdict)
    beside(figure, frame, points, {})
    for text in frame.texts:  # a line behind a name does not cross it out
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4})
    _legend(figure, verdict)
    return figure


def _name(entry: Entry) -> str:
    return entry.name + (f" ({len(entry.names)} names)" if entry.twins else "")


def _shade(verdict: Verdict, entry: Entry) -> str:
    if entry is verdict.take:
        return ORANGE
    return OUT if entry.label in verdict.struck else BLUE


def _limits(verdict: Verdict, timed: list[Entry]) -> tuple[float, float]:
    """A frame for the better ones: those far behind would press the others together, and stand at its edge."""
    means = [entry.mean for entry in timed]
    half = means[: (len(means) + 1) // 2]
    spread = abs(half[-1] - half[0]) or 0.02 * abs(half[0]) or 1.0
    near = [mean for mean in means if abs(mean - means[0]) <= (1 + FAR) * spread]
    shown = means if len(means) <= FEW else near
    reach = max(shown) - min(shown) or 0.1 * abs(means[0]) or 1.0
    low, high = min(shown) - ROOM * reach, max(shown) + ROOM * reach
    ends = [float(entry.over[end]) for entry in timed if entry.mean in shown for end in ("low", "high")]
    ends += [one.value for one in verdict.yardsticks if low < one.value < high]
    low, high = max(low, min([*ends, *shown])) - 0.06 * reach, min(high, max([*ends, *shown])) + 0.06 * reach
    return within(verdict.metric, low if verdict.metric.higher_is_better else max(low, -0.03 * reach), high)


def _front(frame: Axes, verdict: Verdict) -> None:
    best = [(entry.speed, entry.mean) for entry in verdict.front]
    if len(best) > 1:
        frame.plot(*zip(*best, strict=True), color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=1)


def _axes(frame: Axes, verdict: Verdict, speeds: list[float], limits: tuple[float, float]) -> None:
    low, high = min(speeds), max(speeds)
    if low > 0 and high / low > WIDE:
        frame.set_xlim(low / 1.35, high * 1.6)
        logarithmic(frame, "x")
    else:
        room = 0.15 * (high - low) or 0.1 * high
        frame.set_xlim(low - room, high + 1.6 * room)
    frame.set_ylim(*(limits if verdict.metric.higher_is_better else limits[::-1]))  # up is better, in every picture
    frame.set_xlabel("training steps per second  (right: faster)")
    frame.set_ylabel(f"test {titled(verdict.metric)}  (up: better)")
    in_percent(frame.yaxis, verdict.metric)


def _yardsticks(frame: Axes, verdict: Verdict) -> None:
    bottom, top = frame.get_ylim()
    for one in verdict.yardsticks:
        height = (one.value - bottom) / (top - bottom)
        if 0 < height < 1:
            frame.axhline(one.value, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
            right = _crowded_left(frame, verdict, one.value)
            frame.annotate(
                one.words,
                (float(right), one.value),
                (-4 if right else 4, 2 if height < 0.9 else -2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=6.5,
                color=MUTED,
                ha="right" if right else "left",
                va="bottom" if height < 0.9 else "top",
            )


def _crowded_left(frame: Axes, verdict: Verdict, value: float) -> bool:
    """Whether more points lie near a yardstick's line in the left third of the frame than in the right one."""
    places = [
        (frame.transData.transform((entry.speed, entry.mean)) - frame.bbox.min) / frame.bbox.size
        for entry in verdict.everyone
    ]
    line = (frame.transData.transform((1.0, value)) - frame.bbox.min)[1] / frame.bbox.size[1]
    near = [x for x, y in places if abs(y - line) < 0.08]
    return sum(x < 1 / 3 for x in near) > sum(x > 2 / 3 for x in near)


def _legend(figure: Figure, verdict: Verdict) -> None:
    there = {_shade(verdict, entry) for entry in verdict.everyone}
    kinds = [("take this", ORANGE, ORANGE), ("may be the best, too", BLUE, BLUE), ("struck off", OUT, "white")]
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=edge, markerfacecolor=face, markersize=6, label=words)
        for words, edge, face in kinds
        if edge in there
    ]
    handles.append(Line2D([], [], marker="_", linestyle="none", color=OUT, markersize=5, label="a seed"))
    if len(verdict.front) > 1:
        label = "beaten by nobody on both"
        handles.append(Line2D([], [], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), label=label))
    figure.legend(handles=handles, loc="outside upper left", ncols=5, fontsize=7.5)


def _number(value: float, metric: Metric) -> str:
    return short(100 * value) if metric.unit == SHARE else short(value)


def _words(verdict: Verdict) -> str:
    parts = [
        f"{_name(entry)} {_number(entry.mean, verdict.metric)} at {short(entry.speed)} steps/s"
        for entry in verdict.everyone
    ]
    return f"Test {titled(verdict.metric)} against training speed. " + "; ".join(parts) + "."
