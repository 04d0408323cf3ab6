"""Figures of what a model found on a picture: boxes with their labels, or a colour for each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 4.0  # of a picture's side
COLOURS = ("#e45756", "#4c78a8", "#f2b701", "#54a24b", "#b279a2", "#ff9da6", "#9d755d", "#72b7b2")
SHADE = "#f2b701"
OPAQUE = 0.55  # of the colour of a class over the picture


def box_figure(
    picture: NDArray[np.float32], boxes: Sequence[Sequence[float]], names: Sequence[str], weights: Sequence[float]
) -> Figure:
    """A picture (channels,h,w) with boxes (left, top, right, bottom as shares of its width) and their names.

    weights: of the patches, row by row on a square grid: drawn as shades; empty: none are known.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    figure = Figure(figsize=(INCHES, INCHES), layout="constrained")
    frame = figure.subplots()
    _show(frame, picture)
    side = picture.shape[-1]
    each = round(len(weights) ** 0.5)
    if weights and each * each == len(weights) and max(weights) > 0:
        shade = np.ones((each, each, 4))
        shade[..., :3] = to_rgb(SHADE)
        shade[..., 3] = np.asarray(weights).reshape(each, each) / max(weights) * 0.5
        frame.imshow(shade, extent=(0, side, side, 0), interpolation="nearest")
    for number, (box, name) in enumerate(zip(boxes, names, strict=True)):
        left, top, right, bottom = (value * side for value in box)
        colour = COLOURS[number % len(COLOURS)]
        frame.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color=colour, linewidth=1.5)
        frame.text(
            left, top, name, fontsize=8, color="white", va="bottom",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    frame.set_xlim(0, side)
    frame.set_ylim(picture.shape[-2], 0)
    return figure


def mask_figure(picture: NDArray[np.float32], classes: NDArray[Any], names: Sequence[str]) -> Figure:
    """A picture (channels,h,w), and beside it the same with a colour over the pixels of each class but the first."""
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(2 * INCHES + 1.5, INCHES), layout="constrained")
    plain, coloured = figure.subplots(1, 2)
    _show(plain, picture)
    _show(coloured, picture)
    shade = np.zeros((*classes.shape, 4))
    present = [int(label) for label in np.unique(classes) if label > 0]
    for label in present:
        shade[classes == label] = (*to_rgb(COLOURS[(label - 1) % len(COLOURS)]), OPAQUE)
    height, width = picture.shape[-2:]
    coloured.imshow(shade, extent=(0, width, height, 0), interpolation="nearest")
    if present:
        patches = [Patch(color=COLOURS[(label - 1) % len(COLOURS)], label=names[label]) for label in present]
        coloured.legend(handles=patches, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _show(frame: Any, picture: NDArray[np.float32]) -> None:
    height, width = picture.shape[-2:]
    pixels = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    frame.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0), interpolation="nearest")
    frame.set_axis_off()
