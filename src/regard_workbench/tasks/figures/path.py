"""A picture with the places that were looked at, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.figures.colours import ON_PICTURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def path_figure(
    picture: NDArray[np.float32], places: Sequence[Sequence[int]], said: Sequence[Any], side: int
) -> Figure:
    """A grey picture with a numbered mark at each place (row and column of a patch), joined in order, the first is 1.

    said: what was answered after each glimpse, for the caption
    side: pixels of a patch's side
    """
    from regard.support.paper_figure import PaperFigure

    figure = PaperFigure(figsize=(4.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
    x = [(column + 0.5) * side - 0.5 for _, column in places]
    y = [(row + 0.5) * side - 0.5 for row, _ in places]
    axes.plot(x, y, color=ON_PICTURES[2], linewidth=1.5, marker="o", markersize=13, markerfacecolor="white")
    again: dict[tuple[float, float], list[str]] = {}
    for number, place in enumerate(zip(x, y, strict=True)):
        again.setdefault(place, []).append(str(number + 1))
    for (across, down), numbers in again.items():
        axes.text(across, down, " ".join(numbers), ha="center", va="center", fontsize=8)
    axes.set_axis_off()
    axes.set_title("after each glimpse: " + ", ".join(str(answer) for answer in said), fontsize=10)
    return figure
