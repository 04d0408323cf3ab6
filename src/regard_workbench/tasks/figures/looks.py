"""A picture, and where some of its places looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.figures.colours import ON_PICTURES
from regard_workbench.tasks.figures.overlay import overlays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOME = 5  # places whose weights are drawn
BRIGHT = 0.5  # of the brightest place, at least: what is drawn begins with places that show something

Grid = tuple[int, int]


def looks_figure(
    picture: NDArray[np.float32], title: str, weights: Sequence[Sequence[float]], names: Sequence[str]
) -> Figure:
    """The picture (height,width[,3]), then some of its places, framed, each over where it looked.

    weights: of all places for each place, on a grid of the picture's proportions; empty: unknown
    names: of the places
    """
    if not len(weights):
        return overlays(picture, [], [], (1, 1), title)
    grid = grid_over(picture, len(weights))
    places = spread_places(picture, grid)
    figure = overlays(
        picture, [f"{names[place]} looks at" for place in places], [weights[place] for place in places], grid, title
    )
    high, wide = picture.shape[0] // grid[0], picture.shape[1] // grid[1]
    for frame, place in zip(figure.axes[1:], places, strict=False):
        top, left = (place // grid[1]) * high - 0.5, (place % grid[1]) * wide - 0.5
        frame.plot(
            [left, left + wide, left + wide, left, left],
            [top, top, top + high, top + high, top],
            color=ON_PICTURES[0],
            linewidth=1.5,
        )
    return figure


def grid_over(picture: NDArray[np.float32], count: int) -> Grid:
    """Rows and columns of so many square places over a picture."""
    height, width = picture.shape[:2]
    side = round((height * width / count) ** 0.5)
    return height // side, width // side


def spread_places(picture: NDArray[np.float32], grid: Grid, count: int = SOME) -> list[int]:
    """Some bright places that lie far from each other: the brightest, then always the farthest from these."""
    height, width = picture.shape[:2]
    grey = picture.reshape(grid[0], height // grid[0], grid[1], width // grid[1], -1).mean((1, 3, 4)).ravel()
    bright = np.flatnonzero(grey >= BRIGHT * grey.max())
    where = np.stack(np.divmod(bright, grid[1]), 1)
    chosen = [int(np.argmax(grey[bright]))]
    while len(chosen) < min(count, len(bright)):
        distances = ((where[:, None] - where[chosen]) ** 2).sum(-1).min(1)
        chosen.append(int(np.argmax(distances)))
    return [int(bright[index]) for index in chosen]
