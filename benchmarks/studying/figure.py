"""Quality against speed, as a picture that reads on GitHub by day and by night: names beside points, on white."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from regard.comparison.figures.labels import beside
from regard.comparison.figures.style import (
    COLOURS,
    INK,
    MUTED,
    Key,
    in_percent,
    logarithmic,
    looks,
    short,
    titled,
    within,
)
from regard.training.run_folder import durable

from .entries import Entry
from .verdict import Verdict

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
    with looks(), rc_context({"svg.fonttype": "path", "svg.hashsalt": "regard"}):
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
                [speed] * len(entry.seeds), [*entry.seeds.values()], "_", color=shade, markersize=5, alpha=0.8,
                markeredgewidth=0.9, zorder=3,
            )  # fmt: skip
        frame.plot(
            [speed], [height], marker="v" if beyond else "o", color=shade, markersize=7, zorder=4,
            markeredgewidth=1.3, linestyle="none", clip_on=False,
            markerfacecolor=shade if entry.label not in verdict.struck else "white",
        )  # fmt: skip
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
    return within(verdict.metric, low if verdict.higher else max(low, -0.03 * reach), high)


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
    frame.set_ylim(*(limits if verdict.higher else limits[::-1]))  # up is better, in every picture
    frame.set_xlabel("training steps per second  (right: faster)")
    frame.set_ylabel(f"test {titled(verdict.metric)}  (up: better)")
    in_percent(frame.yaxis, verdict.metric)


def _yardsticks(frame: Axes, verdict: Verdict) -> None:
    bottom, top = frame.get_ylim()
    for one in verdict.yardsticks:
        place = (one.value - bottom) / (top - bottom)
        if 0 < place < 1:
            frame.axhline(one.value, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
            frame.annotate(
                one.words, (0.0, one.value), (4, 2 if place < 0.9 else -2), xycoords=("axes fraction", "data"),
                textcoords="offset points", fontsize=6.5, color=MUTED, va="bottom" if place < 0.9 else "top",
            )  # fmt: skip


def _legend(figure: Figure, verdict: Verdict) -> None:
    there = {_shade(verdict, entry) for entry in verdict.everyone}
    kinds = [
        ("take this", ORANGE, ORANGE),
        ("may be the best, too", BLUE, BLUE),
        ("struck off", OUT, "white"),
    ]
    handles = [
        Line2D(
            [], [], marker="o", linestyle="none", color=edge, markerfacecolor=face, markersize=6, label=words
        )
        for words, edge, face in kinds
        if edge in there
    ]
    handles.append(Line2D([], [], marker="_", linestyle="none", color=OUT, markersize=5, label="a seed"))
    if len(verdict.front) > 1:
        label = "beaten by nobody on both"
        handles.append(Line2D([], [], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), label=label))
    figure.legend(handles=handles, loc="outside upper left", ncols=5, fontsize=7.5)


def _number(value: float, metric: str) -> str:
    return short(100 * value) if titled(metric).endswith("%") else short(value)


def _words(verdict: Verdict) -> str:
    parts = [
        f"{_name(entry)} {_number(entry.mean, verdict.metric)} at {short(entry.speed)} steps/s"
        for entry in verdict.everyone
    ]
    return f"Test {titled(verdict.metric)} against training speed. " + "; ".join(parts) + "."
