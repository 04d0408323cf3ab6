"""A node of a graph with those it attends to, and their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard_workbench.tasks.figures.colours import COLOURS, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = 4.6  # inches
MOST = 16  # neighbours, those with the largest weights
THICK = 7.0  # points of the line of weight 1
UNKNOWN = "#b9bec4"  # of a node without a class


def neighbours_figure(
    title: str, names: Sequence[str], classes: Sequence[int], called: Sequence[str], weights: Sequence[float]
) -> Figure:
    """The first node in the middle, the others that have a weight around it, in the colours of their classes.

    names: of the nodes; classes: their numbers, below 0 where a node has none; called: the names of the classes.
    """
    from matplotlib.lines import Line2D

    from regard.support.paper_figure import PaperFigure

    order = sorted(range(1, len(weights)), key=lambda node: (-weights[node], node))
    around = [node for node in order if weights[node] > 0][:MOST]
    figure = PaperFigure(figsize=(SIZE, SIZE), layout="constrained")
    frame = figure.add_subplot()
    ground = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    largest = max([weights[0], *(weights[node] for node in around)])
    for place, node in enumerate(around):
        turn = math.pi / 2 - 2 * math.pi * place / len(around)
        x, y = math.cos(turn), math.sin(turn)
        thick, alpha = 0.6 + THICK * weights[node], 0.35 + 0.4 * weights[node] / largest
        frame.plot([0, x], [0, y], color=MUTED, linewidth=thick, alpha=alpha, zorder=1)
        frame.text(
            0.62 * x,
            0.62 * y,
            f"{weights[node]:.2f}",
            fontsize=8,
            color=INK,
            ha="center",
            va="center",
            bbox=ground,
            zorder=2,
        )
        _node(frame, x, y, names[node], classes[node], 17)
    _node(frame, 0, 0, names[0], classes[0], 24)
    frame.text(0.14, -0.2, f"itself {weights[0]:.2f}", fontsize=8, color=INK, bbox=ground, zorder=2)
    labels = sorted({classes[node] for node in (0, *around) if classes[node] >= 0})
    handles = [Line2D([], [], linestyle="none", marker="o", markersize=8, color=_colour(label)) for label in labels]
    figure.legend(
        handles,
        [called[label] for label in labels],
        loc="outside lower center",
        ncols=min(4, max(1, len(labels))),
        frameon=False,
        fontsize=8,
    )
    frame.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    frame.set_axis_off()
    frame.set_title(title, fontsize=8.5, color=INK, parse_math=False)
    return figure


def _node(frame: Axes, x: float, y: float, name: str, number: int, size: float) -> None:
    """A disc with its name, in the colour of its class; grey where it has none."""
    frame.plot([x], [y], marker="o", markersize=size, color=_colour(number), zorder=3)
    frame.text(x, y, name[:8], fontsize=7, color="white", ha="center", va="center", zorder=4, parse_math=False)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)] if number >= 0 else UNKNOWN
