"""Quality against cost: results over costs, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from regard_workbench.comparison.report.bars import Reached, describe, within
from regard_workbench.comparison.results import Row
from regard_workbench.figures.labels import beside
from regard_workbench.figures.style import Drawing, Keys, blank, in_percent, logarithmic, short, titled
from regard_workbench.tasks.figures.colours import MUTED
from regard_workbench.tasks.measures.metrics import Metric

WIDE = 4.0  # costs that differ by more than this factor are drawn on a logarithmic axis


@dataclass(frozen=True)
class CostAxis:
    """A cost: its field in a row, its title, and its direction."""

    field: str
    title: str
    unit: str = ""
    less_is_better: bool = True


COST_AXES = (
    CostAxis("parameters", "parameters"),
    CostAxis("flops_per_step", "FLOPs per training step"),
    CostAxis("steps_per_second", "training steps per second", less_is_better=False),
    CostAxis("peak_memory_mib", "peak memory, MiB", " MiB"),
)


def against(
    found: Sequence[Reached], rows: Sequence[Row], keys: Keys, axis: CostAxis, metric: Metric, split: str
) -> Drawing | None:
    """Points with intervals over one cost, and their Pareto front; None without costs."""
    costs = {row["label"]: row.get(axis.field) for row in rows}
    points = [(float(cost), point) for point in found if (cost := costs[point.key.label]) is not None]
    if not points:
        return None
    best = front(
        [
            (-cost if axis.less_is_better else cost, point.mean if metric.higher_is_better else -point.mean)
            for cost, point in points
        ]
    )
    figure, frame = blank()
    tips: dict[str, str] = {}
    for number, (cost, point) in enumerate(points):
        key = point.key
        if point.known:
            line = frame.vlines(cost, point.low, point.high, color=key.colour, linewidth=1, alpha=0.55)
            line.set_gid(key.group("interval"))
        (dot,) = frame.plot(
            [cost],
            [point.mean],
            key.marker,
            color=key.colour,
            markersize=6.5,
            zorder=4,
            markerfacecolor=key.colour if number in best else "none",
            markeredgewidth=1.2,
        )
        dot.set_gid(key.group("point"))
        tips[key.group("point")] = f"{describe(point, metric)}; {short(cost)}{axis.unit or ' ' + axis.title}"
    line_of_best = sorted((points[number][0], points[number][1].mean) for number in best)
    if len(line_of_best) > 1:
        frame.plot(*zip(*line_of_best, strict=True), color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=1)
    _scale(frame, [cost for cost, _ in points], [point for _, point in points], metric)
    frame.set_xlabel(axis.title + (" (less is better)" if axis.less_is_better else " (more is better)"))
    frame.set_ylabel(f"{split} {titled(metric)}")
    in_percent(frame.yaxis, metric)
    lines = [[(cost, point.low), (cost, point.high)] for cost, point in points if point.known]
    lines += [line_of_best] if len(line_of_best) > 1 else []
    beside(figure, frame, [(cost, point.mean, point.key) for cost, point in points], keys, lines)
    names = ", ".join(points[number][1].key.name for number in best)
    descriptions = "; ".join(f"{describe(point, metric)} at {short(cost)}" for cost, point in points)
    alt = f"{split} {metric.name} over {axis.title}. Pareto front: {names}. All: {descriptions}."
    return Drawing(f"cost-{axis.field.replace('_', '-')}", f"over {axis.title}", alt, figure, tips)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the Pareto-optimal points, where more is better on both axes."""

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] >= other[0] and one[1] >= other[1] and one != other

    return [index for index, point in enumerate(points) if not any(beats(rival, point) for rival in points)]


def _scale(frame: Axes, costs: Sequence[float], found: Sequence[Reached], metric: Metric) -> None:
    low, high = min(costs), max(costs)
    if low > 0 and high / low > WIDE:
        frame.set_xlim(low / 1.5, high * 1.5)
        logarithmic(frame, "x")
    else:
        room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
        frame.set_xlim(low - room, high + room)
        frame.xaxis.set_major_formatter(lambda value, _: short(value))
    values = [point.mean for point in found]
    spread = max(values) - min(values) or 0.1 * abs(values[0]) or 1.0
    ends = [end for point in found for end in ((point.low, point.high) if point.known else (point.mean,))]
    below, above = max(min(ends), min(values) - spread), min(max(ends), max(values) + spread)
    frame.set_ylim(*within(metric, below - 0.08 * spread, above + 0.08 * spread))
