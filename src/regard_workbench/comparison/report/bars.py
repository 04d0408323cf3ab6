"""The result of each contestant: a bar from zero with its interval, and a zoomed view of the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from regard_workbench.comparison.results import Row, deciding, t_interval
from regard_workbench.comparison.statistics import PossibleInterval, bounds, possible
from regard_workbench.figures.style import Drawing, Key, Keys, blank, in_percent, number_of, titled
from regard_workbench.tasks.figures.colours import INK, MUTED
from regard_workbench.tasks.measures.metrics import Metric

ROW, AROUND = 0.21, 0.62  # inches: of a contestant, and of axes and labels
SEEDS = dict[int, float]
ZOOM = 2.0  # how far the zoomed view reaches beyond the seeds, as a multiple of their range
_LEAST = 0.3  # of a bar's thickness: the spread of the dots of different seeds


@dataclass(frozen=True)
class Reached:
    """The result of a contestant on a split: the mean, its interval, and each seed."""

    key: Key
    mean: float
    low: float
    high: float
    seeds: SEEDS
    cut: PossibleInterval | None = None  # the interval within what is possible, where that is less

    @property
    def known(self) -> bool:
        """Whether there is an interval that says something."""
        return self.high > self.low and not (self.cut and self.cut.empty)


def reached(rows: Sequence[Row], keys: Keys, split: str, seeds: Mapping[str, SEEDS]) -> list[Reached]:
    """The rows with a value of the deciding metric, the best first; `seeds` has the value of each seed by label."""
    metric = deciding(rows)
    points = []
    for row in rows:
        over = t_interval(row, split, metric.name)
        if over and over["mean"] is not None:
            seed_values = seeds.get(row["label"], {})
            cut = possible(over["low"], over["high"], metric)
            points.append(
                Reached(keys[row["label"]], over["mean"], cut.low, cut.high, seed_values, cut if cut.cut else None)
            )
    return sorted(points, key=lambda one: -one.mean if metric.higher_is_better else one.mean)


def bars(found: Sequence[Reached], metric: Metric, split: str) -> Drawing | None:
    """Bars from zero, so that their lengths may be compared."""
    if not found:
        return None
    figure, frame = blank(height=AROUND + ROW * len(found))
    tips: dict[str, str] = {}
    for row, point in enumerate(found):
        (bar,) = frame.barh(row, point.mean, height=0.62, color=point.key.colour, alpha=0.82)
        bar.set_gid(point.key.group("bar"))
        tips[point.key.group("bar")] = describe(point, metric)
        _whisker(frame, row, point, INK)
    _names(frame, found)
    ends = [0.0, *(point.high for point in found if point.known), *(point.mean for point in found)]
    frame.set_xlim(min(0.0, *(point.mean for point in found)), within(metric, 0.0, 1.04 * max(ends))[1] or 1.0)
    return _finished(frame, found, metric, split, Drawing(f"{split}-bars", "", "", figure, tips))


def closer(found: Sequence[Reached], metric: Metric, split: str) -> Drawing | None:
    """Intervals and single seeds on a zoomed scale, which need not begin at zero."""
    if not found:
        return None
    figure, frame = blank(height=AROUND + ROW * len(found))
    tips: dict[str, str] = {}
    for row, point in enumerate(found):
        _whisker(frame, row, point, point.key.colour, thick=1.6)
        (dot,) = frame.plot(
            [point.mean], [row], point.key.marker, color=point.key.colour, markersize=6, zorder=4, markeredgewidth=0
        )
        dot.set_gid(point.key.group("mean"))
        tips[point.key.group("mean")] = describe(point, metric)
        for number, (seed, value) in enumerate(sorted(point.seeds.items())):
            away = _LEAST * (number / max(1, len(point.seeds) - 1) - 0.5) if len(point.seeds) > 1 else 0.0
            (dot,) = frame.plot(
                [value],
                [row + away],
                "o",
                markersize=3,
                markerfacecolor="none",
                markeredgecolor=INK,
                markeredgewidth=0.7,
                zorder=5,
            )
            dot.set_gid(point.key.group(f"seed{seed}"))
            tips[point.key.group(f"seed{seed}")] = f"{point.key.label}, seed {seed}: {number_of(value, metric)}"
    _names(frame, found)
    frame.set_xlim(*within(metric, *_zoomed(found)))
    return _finished(frame, found, metric, split, Drawing(f"{split}-intervals", "", "", figure, tips))


def describe(one: Reached, metric: Metric) -> str:
    """A result in one line."""
    text = f"{one.key.label}: {number_of(one.mean, metric)}"
    if one.known:
        cut = ", cut at what is possible" if one.cut else ""
        text += f" (95 % interval {number_of(one.low, metric)} to {number_of(one.high, metric)}{cut})"
    elif one.cut:
        text += " (too few seeds for an interval)"
    return text


def _whisker(frame: Axes, row: int, one: Reached, colour: str, thick: float = 1.0) -> None:
    if one.known:
        line = frame.hlines(row, one.low, one.high, color=colour, linewidth=thick, zorder=3)
        line.set_gid(one.key.group("interval"))
        for end, is_cut in ((one.low, one.cut and one.cut.cut_low), (one.high, one.cut and one.cut.cut_high)):
            if is_cut:  # an open end: the interval goes on, the metric does not
                continue
            cap = frame.vlines(end, row - 0.16, row + 0.16, color=colour, linewidth=thick, zorder=3)
            cap.set_gid(one.key.group("end"))


def _zoomed(found: Sequence[Reached]) -> tuple[float, float]:
    """The limits of the zoomed view: all seeds, and intervals unless they are much longer than the range of seeds."""
    values = [value for point in found for value in (point.mean, *point.seeds.values())]
    low, high = min(values), max(values)
    reach = ZOOM * (high - low) or math.inf
    low = max(min([low, *(point.low for point in found if point.known)]), low - reach)
    high = min(max([high, *(point.high for point in found if point.known)]), high + reach)
    room = 0.04 * (high - low) or 0.02 * abs(high) or 0.5
    return low - room, high + room


def _names(frame: Axes, found: Sequence[Reached]) -> None:
    many = max(point.key.number for point in found) > 4
    frame.set_yticks(
        range(len(found)), [f"{point.key.name}  {point.key.number}" if many else point.key.name for point in found]
    )
    frame.tick_params(axis="y", length=0)
    frame.set_ylim(len(found) - 0.45, -0.55)
    frame.grid(visible=False, axis="y")
    frame.spines["left"].set_visible(False)
    frame.axvline(0, color=MUTED, linewidth=0.6, zorder=1)


def _finished(frame: Axes, found: Sequence[Reached], metric: Metric, split: str, made: Drawing) -> Drawing:
    frame.set_xlabel(f"{split} {titled(metric)}")
    in_percent(frame.xaxis, metric)
    kind = "Bars from zero" if made.name.endswith("bars") else "Intervals and seeds"
    alt = f"{kind}, {split} {metric.name}, best first: " + "; ".join(describe(point, metric) for point in found) + "."
    title = f"{split} {titled(metric)}, from zero" if made.name.endswith("bars") else f"{split}, zoomed"
    return Drawing(made.name, title, alt, made.figure, made.tips)


def within(metric: Metric, low: float, high: float) -> tuple[float, float]:
    """The limits of an axis, within what the metric can be even if an interval is wider."""
    least, most = bounds(metric)
    return max(low, least - 0.01), min(high, most + 0.01)
