"""Labels beside curves and points, placed with the least overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from regard_workbench.figures.style import Key, Keys, tag

GAP = 0.058  # of the axes' height, between two labels at the edge
LETTER, LINE = 4.6, 9.0  # width and height of a letter, in points
DOT = 4.0  # radius of a marker, in points
STEP, MOST_STEPS = 2.0, 400  # points between two boxes of a line, and how many a part of it may have
Across = Literal["left", "center", "right"]
Along = Literal["bottom", "center", "top"]


def at_ends(frame: Axes, ends: dict[Key, float], keys: Keys) -> None:
    """A label at the right edge for each curve that ends at a height, moved apart where ends are close."""
    low, high = frame.get_ylim()
    bend = math.log if frame.get_yscale() == "log" else float
    heights = {
        key: (bend(min(max(end, low), high)) - bend(low)) / (bend(high) - bend(low)) for key, end in ends.items()
    }
    order = sorted(heights, key=lambda key: heights[key])
    for key, height in zip(order, apart([heights[key] for key in order]), strict=True):
        leader = {"arrowstyle": "-", "color": key.colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0}
        annotation = frame.annotate(
            tag(key, keys),
            (1.0, heights[key]),
            (1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=7.5,
            color=key.colour,
            annotation_clip=False,
            arrowprops=leader | {"relpos": (0, 0.5)},
        )
        annotation.set_gid(key.group("end"))


def apart(heights: Sequence[float], gap: float = GAP) -> list[float]:
    """Increasing heights, moved as little as needed so that neighbours are a gap apart and all stay within 0 and 1."""
    gap = min(gap, 1.0 / max(1, len(heights) - 1))
    spread = list(heights)
    for index in range(1, len(spread)):
        spread[index] = max(spread[index], spread[index - 1] + gap)
    if spread:
        spread[-1] = min(spread[-1], 1.0)
    for index in range(len(spread) - 2, -1, -1):
        spread[index] = min(spread[index], spread[index + 1] - gap)
    return spread


@dataclass(frozen=True)
class _Side:
    """A possible position of a label: the offset from its point, and the alignment."""

    x: float
    y: float
    across: Across
    along: Along

    def box(self, spot: tuple[float, float], width: float) -> Bbox:
        left = {"left": 0.0, "center": width / 2, "right": width}[self.across]
        below = {"bottom": 0.0, "center": LINE / 2, "top": LINE}[self.along]
        return Bbox.from_bounds(spot[0] + self.x - left, spot[1] + self.y - below, width, LINE)


_SIDES = (
    _Side(6, 0, "left", "center"),
    _Side(-6, 0, "right", "center"),
    _Side(0, 6, "center", "bottom"),
    _Side(0, -6, "center", "top"),
    _Side(4, 4, "left", "bottom"),
    _Side(4, -4, "left", "top"),
    _Side(-4, 4, "right", "bottom"),
    _Side(-4, -4, "right", "top"),
    _Side(9, 9, "left", "bottom"),
    _Side(9, -9, "left", "top"),
    _Side(-9, 9, "right", "bottom"),
    _Side(-9, -9, "right", "top"),
    _Side(0, 15, "center", "bottom"),
    _Side(0, -15, "center", "top"),
    _Side(18, 18, "left", "bottom"),
    _Side(18, -18, "left", "top"),
    _Side(-18, 18, "right", "bottom"),
    _Side(-18, -18, "right", "top"),
)


def beside(
    figure: Figure,
    frame: Axes,
    points: Sequence[tuple[float, float, Key]],
    keys: Keys,
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> None:
    """A label beside each point (x, y), where it covers least of points, lines, other labels and the edge."""
    figure.draw_without_rendering()  # positions are only known after the layout
    scale = 72 / figure.dpi
    spots = [(float(x) * scale, float(y) * scale) for x, y in frame.transData.transform([(x, y) for x, y, _ in points])]
    edge = frame.get_window_extent()
    room = Bbox.from_bounds(edge.x0 * scale, edge.y0 * scale, edge.width * scale, edge.height * scale)
    obstacles = [Bbox.from_bounds(x - DOT, y - DOT, 2 * DOT, 2 * DOT) for x, y in spots]
    obstacles += [box for line in lines for box in _along(frame, line, scale)]
    for spot, (x, y, key) in zip(spots, points, strict=True):
        text = tag(key, keys)
        boxes = {side: side.box(spot, LETTER * len(text)) for side in _SIDES}
        side = min(_SIDES, key=lambda side: _covered(boxes[side], obstacles, room))
        obstacles.append(boxes[side])
        label = frame.annotate(
            text,
            (x, y),
            (side.x, side.y),
            textcoords="offset points",
            ha=side.across,
            va=side.along,
            fontsize=7.5,
            color=key.colour,
            annotation_clip=False,
        )
        label.set_gid(key.group("tag"))
        label.set_in_layout(False)


def _along(frame: Axes, line: Sequence[tuple[float, float]], scale: float) -> list[Bbox]:
    """A line as small boxes, a few points apart."""
    corners = [(float(x) * scale, float(y) * scale) for x, y in frame.transData.transform(line) if math.isfinite(x + y)]
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(corners):
        steps = min(MOST_STEPS, max(1, math.ceil(math.hypot(next_x - x, next_y - y) / STEP)))
        for number in range(steps + 1):
            at = number / steps
            boxes.append(Bbox.from_bounds(x + at * (next_x - x) - 1, y + at * (next_y - y) - 1, 2 * 1, 2 * 1))
    return boxes


def _covered(box: Bbox, taken: Sequence[Bbox], room: Bbox) -> float:
    """The area of a box that overlaps others or lies outside."""
    outside = box.width * box.height - _shared(box, room)
    return outside + sum(_shared(box, obstacle) for obstacle in taken)


def _shared(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)
