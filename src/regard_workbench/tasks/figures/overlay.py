"""A picture drawn once for each word, with the weights of that word over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.figures.colours import ON_PICTURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 6  # pictures in a row
INCHES = 1.5  # of a picture's height; half as much again where a row has few pictures
FEW = 3
DEEPEST = 0.65  # how opaque the colour of the largest weight is
DIMMED = 0.6  # how bright the picture below the colour is, so that a light one does not hide it


def overlays(
    picture: NDArray[np.float32],
    words: Sequence[str],
    weights: Sequence[Sequence[float]],
    grid: tuple[int, int],
    title: str = "",
) -> Figure:
    """The picture (height,width[,3]) below a title, then once for each word with its weights over a grid of patches.

    Weights are shades of a colour that is seen on light and on dark pictures, the largest of each word the deepest.
    """
    from regard.support.paper_figure import PaperFigure

    count = len(words) + 1
    wide = max(1.0, picture.shape[1] / picture.shape[0])  # how many squares a picture takes of a row
    down = -(-count // max(1, int(ACROSS / wide)))
    across = -(-count // down)  # rows are as even as they can be
    height = INCHES if across * wide > FEW else 1.5 * INCHES
    figure = PaperFigure(figsize=(across * wide * height, down * (height + 0.25)), layout="constrained")
    frames = figure.subplots(down, across, squeeze=False).flat
    for number, frame in enumerate(frames):
        frame.set_axis_off()
        if number >= count:
            continue
        drawn = picture if not number else shaded(picture, weights[number - 1], grid)
        frame.imshow(drawn, cmap="gray", vmin=0, vmax=1, interpolation="none")
        frame.set_title(words[number - 1] if number else title, fontsize=8, parse_math=False)
    return figure


def shaded(
    picture: NDArray[np.float32], weights: Sequence[float], grid: tuple[int, int], colour: str = ON_PICTURES[2]
) -> NDArray[np.float32]:
    """A picture (height,width[,3]) in colours (height,width,3), with weights of its patches as shades of a colour."""
    row = np.nan_to_num(np.asarray(weights, np.float32)).reshape(grid)
    height, width = picture.shape[:2]
    alpha = np.kron(row / (row.max() or 1.0), np.ones((height // grid[0], width // grid[1]), np.float32))
    alpha = np.clip(DEEPEST * alpha, 0, 1)[..., None]
    below = DIMMED * (picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2))
    blended: NDArray[np.float32] = ((1 - alpha) * below + alpha * rgb(colour)).astype(np.float32)
    return blended


def rgb(code: str) -> NDArray[np.float32]:
    """A colour as three numbers from 0 to 1: "#ff0000" is red."""
    return np.array([int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)], np.float32)
