"""What a model found on a picture, drawn on it: boxes with their labels, or a colour for each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.tasks.figures.colours import ON_PICTURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 4.0  # of a picture's side
SIDE = 256  # pixels of a picture on a page, about
SHADE = ON_PICTURES[2]
OPAQUE = 0.55  # of the colour of a class over the picture


def box_figure(
    picture: NDArray[np.float32],
    boxes: Sequence[Sequence[float]],
    names: Sequence[str],
    weights: Sequence[float],
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
        colour = ON_PICTURES[number % len(ON_PICTURES)]
        frame.plot(
            [left, right, right, left, left], [top, top, bottom, bottom, top], color=colour, linewidth=1.5
        )
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
        shade[classes == label] = (*to_rgb(ON_PICTURES[(label - 1) % len(ON_PICTURES)]), OPAQUE)
    height, width = picture.shape[-2:]
    coloured.imshow(shade, extent=(0, width, height, 0), interpolation="nearest")
    if present:
        patches = [
            Patch(color=ON_PICTURES[(label - 1) % len(ON_PICTURES)], label=names[label]) for label in present
        ]
        coloured.legend(handles=patches, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def outlined(
    picture: NDArray[np.float32], boxes: Sequence[Sequence[float]], side: int = SIDE
) -> NDArray[np.float32]:
    """A square picture (channels,h,w) as (height,width,3), enlarged to about `side` pixels, with the edges of boxes."""
    found = _enlarged(picture, side)
    for number, box in enumerate(boxes):
        left, top, right, bottom = (min(len(found) - 1, max(0, round(value * len(found)))) for value in box)
        colour = _colour(number)
        for thick in (0, 1):
            found[[min(top + thick, bottom), max(bottom - thick, top)], left : right + 1] = colour
            found[top : bottom + 1, [min(left + thick, right), max(right - thick, left)]] = colour
    return found


def tinted(picture: NDArray[np.float32], classes: NDArray[Any], side: int = SIDE) -> NDArray[np.float32]:
    """A square picture (channels,h,w) as (height,width,3), enlarged, with a colour over each class but the first."""
    found = _enlarged(picture, side)
    each = len(found) // len(classes)
    for label in np.unique(classes[classes > 0]).tolist():
        here = np.kron(classes == label, np.ones((each, each), bool))
        found[here] = (1 - OPAQUE) * found[here] + OPAQUE * _colour(label - 1)
    return found


def _enlarged(picture: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """A picture (channels,h,w) as (height,width,3): each pixel becomes a square."""
    each = max(1, side // picture.shape[-1])
    coloured = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)
    return coloured.repeat(each, 0).repeat(each, 1).astype(np.float32)


def _colour(number: int) -> NDArray[np.float32]:
    code = ON_PICTURES[number % len(ON_PICTURES)]
    return np.array([int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)], np.float32)


def _show(frame: Any, picture: NDArray[np.float32]) -> None:
    height, width = picture.shape[-2:]
    pixels = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    frame.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0), interpolation="nearest")
    frame.set_axis_off()
