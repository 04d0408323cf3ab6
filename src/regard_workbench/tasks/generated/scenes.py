"""Scenes: small pictures placed on a larger canvas, with the box and the mask of each.

>>> from regard_workbench.tasks.generated.draws import Draws
>>> import numpy as np
>>> scene = compose([np.ones((8, 8), np.float32)], [3], 32, 32, Draws("example", 1))
>>> scene.picture.shape, scene.labels, scene.boxes.shape, scene.masks.shape
((1, 32, 32), [3], (1, 4), (1, 32, 32))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.generated.draws import Draws

TRIES = 50  # places tried for one figure before the scene goes without it
INK = 0.2  # a pixel at least so bright belongs to the figure, and to its mask


@dataclass(frozen=True)
class Scene:
    """A canvas and what lies on it."""

    picture: NDArray[np.float32]  # (channels,height,width), from 0 to 1
    labels: list[int]  # of the figures that found a place, in the order they were placed
    boxes: NDArray[np.float32]  # (figures,4): left, top, right, bottom in pixels, around the ink
    masks: NDArray[np.bool_]  # (figures,height,width)


def compose(
    figures: Sequence[NDArray[np.float32]],
    labels: Sequence[int],
    height: int,
    width: int,
    draws: Draws,
    *,
    sizes: tuple[int, int] | None = None,
    overlap: float = 0.0,
    colours: Sequence[Sequence[float]] | None = None,
    clutter: int = 0,
) -> Scene:
    """Place grey figures (h,w) at random, each after the others; a figure that finds no place is left out.

    Args:
        sizes: the smallest and the largest height of a placed figure in pixels; None: as they are
        overlap: the largest part of a figure's ink that may lie on that of others
        colours: of each figure, three numbers from 0 to 1; the canvas then has three channels
        clutter: patches of 4 × 4 pixels cut from the figures and strewn over the canvas before they are placed
    """
    channels = 1 if colours is None else 3
    picture = np.zeros((channels, height, width), np.float32)
    occupied = np.zeros((height, width), bool)
    strew(picture, figures, clutter, draws)
    placed: list[int] = []
    boxes: list[tuple[int, ...]] = []
    masks: list[NDArray[np.bool_]] = []
    for number, (figure, label) in enumerate(zip(figures, labels, strict=True)):
        drawn = figure if sizes is None else resized(figure, sizes[0] + draws.below(sizes[1] - sizes[0] + 1))
        high, wide = drawn.shape
        if high > height or wide > width:
            raise BadValue(f"sizes: expected figures that fit into {height} × {width} pixels, got {high} × {wide}.")
        ink = drawn >= INK
        for _ in range(TRIES):
            top, left = draws.below(height - high + 1), draws.below(width - wide + 1)
            window = np.s_[top : top + high, left : left + wide]
            if (ink & occupied[window]).sum() <= overlap * ink.sum():
                break
        else:
            continue
        colour = np.ones(1, np.float32) if colours is None else np.asarray(colours[number], np.float32)
        below = picture[:, top : top + high, left : left + wide]
        below[...] = np.where(ink, drawn * colour[:, None, None], below)
        mask = np.zeros((height, width), bool)
        mask[window] = ink
        occupied |= mask
        for covered in masks:  # what lies above hides what lies below
            covered &= ~mask
        rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
        box = (left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1)
        boxes.append(box if ink.any() else (left, top, left + wide, top + high))
        masks.append(mask)
        placed.append(label)
    return Scene(
        picture,
        placed,
        np.asarray(boxes, np.float32).reshape(-1, 4),
        np.asarray(masks, bool).reshape(-1, height, width),
    )


def resized(figure: NDArray[np.float32], height: int) -> NDArray[np.float32]:
    """A grey figure at another height, its proportions kept."""
    from PIL import Image

    width = max(1, round(figure.shape[1] * height / figure.shape[0]))
    image = Image.fromarray(figure.astype(np.float32), mode="F").resize((width, height), Image.Resampling.BILINEAR)
    return np.clip(np.asarray(image, np.float32), 0, 1)


def strew(
    picture: NDArray[np.float32], figures: Sequence[NDArray[np.float32]], count: int, draws: Draws, side: int = 4
) -> None:
    """Draw `count` square pieces of the figures, `side` pixels wide, into a picture (channels,height,width)."""
    _, height, width = picture.shape
    for _ in range(count if figures else 0):
        figure = draws.among(figures)
        y, x = (draws.below(max(1, figure.shape[0] - side + 1)), draws.below(max(1, figure.shape[1] - side + 1)))
        piece = figure[y : y + side, x : x + side]
        top, left = draws.below(height - piece.shape[0] + 1), draws.below(width - piece.shape[1] + 1)
        window = picture[:, top : top + piece.shape[0], left : left + piece.shape[1]]
        window[...] = np.maximum(window, piece)
