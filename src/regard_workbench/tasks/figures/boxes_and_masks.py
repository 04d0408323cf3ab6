"""What a model found on a picture, drawn on it: boxes with their labels, or a colour for each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.figures.colours import ON_PICTURES
from regard_workbench.tasks.figures.overlay import DEEPEST, rgb

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 4.0  # of a picture's side
SIDE = 256  # pixels of a picture on a page, about
SMALL_INCHES = 2.2  # of a picture among several
MOST_ATTENDED = 4  # classes whose attention is drawn
OPAQUE = 0.55  # of the colour of a class over the picture


def box_figure(
    picture: NDArray[np.float32],
    boxes: Sequence[Sequence[float]],
    names: Sequence[str],
    weights: Sequence[Sequence[float]],
) -> Figure:
    """A picture (channels,h,w) with boxes (left, top, right, bottom as shares of its width) and their names.

    weights: of the patches, row by row on a square grid, for each box: shades in the colour of the box. Empty: unknown.
    """
    from regard.support.paper_figure import PaperFigure

    figure = PaperFigure(figsize=(INCHES, INCHES), layout="constrained")
    frame = figure.subplots()
    _show(frame, picture)
    side = picture.shape[-1]
    for number, row in enumerate(weights):
        _shade(frame, row, side, ON_PICTURES[number % len(ON_PICTURES)])
    for number, (box, name) in enumerate(zip(boxes, names, strict=True)):
        left, top, right, bottom = (value * side for value in box)
        colour = ON_PICTURES[number % len(ON_PICTURES)]
        frame.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color=colour, linewidth=1.5)
        frame.text(
            left,
            top,
            name,
            fontsize=8,
            color="white",
            va="bottom",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
        )
    frame.set_xlim(0, side)
    frame.set_ylim(picture.shape[-2], 0)
    return figure


def mask_figure(
    picture: NDArray[np.float32], classes: NDArray[Any], names: Sequence[str], weights: Sequence[Sequence[float]]
) -> Figure:
    """A picture (channels,h,w); the same with a colour over the pixels of each class but the first; and for each class
    that was found what it attended to.

    weights: of the patches, row by row on a square grid, for each class. Empty: unknown.
    """
    from regard.support.paper_figure import PaperFigure

    present = [int(label) for label in np.unique(classes) if label > 0]
    attended = present[: MOST_ATTENDED if weights else 0]
    height, width = picture.shape[-2:]
    figure = PaperFigure(figsize=((2 + len(attended)) * SMALL_INCHES, SMALL_INCHES + 0.3), layout="constrained")
    plain, coloured, *overlays = figure.subplots(1, 2 + len(attended))
    for frame in (plain, coloured, *overlays):
        _show(frame, picture)
    shade = np.zeros((*classes.shape, 4))
    for label in present:
        shade[classes == label] = (*_colour(label - 1), OPAQUE)
    coloured.imshow(shade, extent=(0, width, height, 0), interpolation="nearest")
    plain.set_title("picture", fontsize=9)
    coloured.set_title(", ".join(names[label] for label in present) or "nothing", fontsize=9)
    for frame, label in zip(overlays, attended, strict=True):
        _shade(frame, weights[label], width, ON_PICTURES[(label - 1) % len(ON_PICTURES)])
        frame.set_title(f"{names[label]} attends to", fontsize=9)
    return figure


def outlined(picture: NDArray[np.float32], boxes: Sequence[Sequence[float]], side: int = SIDE) -> NDArray[np.float32]:
    """A square picture (channels,h,w) as (height,width,3), enlarged to about `side` pixels, with the edges of boxes."""
    enlarged = _enlarged(picture, side)
    for number, box in enumerate(boxes):
        left, top, right, bottom = (min(len(enlarged) - 1, max(0, round(value * len(enlarged)))) for value in box)
        colour = _colour(number)
        for thick in (0, 1):
            enlarged[[min(top + thick, bottom), max(bottom - thick, top)], left : right + 1] = colour
            enlarged[top : bottom + 1, [min(left + thick, right), max(right - thick, left)]] = colour
    return enlarged


def tinted(picture: NDArray[np.float32], classes: NDArray[Any], side: int = SIDE) -> NDArray[np.float32]:
    """A square picture (channels,h,w) as (height,width,3), enlarged, with a colour over each class but the first."""
    enlarged = _enlarged(picture, side)
    scale = len(enlarged) // len(classes)
    for label in np.unique(classes[classes > 0]).tolist():
        mask = np.kron(classes == label, np.ones((scale, scale), bool))
        enlarged[mask] = (1 - OPAQUE) * enlarged[mask] + OPAQUE * _colour(label - 1)
    return enlarged


def _enlarged(picture: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """A picture (channels,h,w) as (height,width,3): each pixel becomes a square."""
    scale = max(1, side // picture.shape[-1])
    coloured = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)
    return coloured.repeat(scale, 0).repeat(scale, 1).astype(np.float32)


def _colour(number: int) -> NDArray[np.float32]:
    return rgb(ON_PICTURES[number % len(ON_PICTURES)])


def _show(frame: Any, picture: NDArray[np.float32]) -> None:
    height, width = picture.shape[-2:]
    pixels = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    frame.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0), interpolation="nearest")
    frame.set_axis_off()


def _shade(frame: Any, weights: Sequence[float], side: int, colour: str) -> None:
    """Weights of patches, row by row on a square grid, as shades of a colour over a picture."""
    count = round(len(weights) ** 0.5)
    if not len(weights) or count * count != len(weights) or max(weights) <= 0:
        return
    shade = np.ones((count, count, 4))
    shade[..., :3] = rgb(colour)
    shade[..., 3] = np.asarray(weights).reshape(count, count) / max(weights) * DEEPEST
    frame.imshow(shade, extent=(0, side, side, 0), interpolation="nearest")
