"""A picture drawn once for each word, and on it where the word looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 6  # pictures in a row
INCHES = 1.5  # of a picture's side


def overlays(
    picture: NDArray[np.float32],
    words: Sequence[str],
    weights: Sequence[Sequence[float]],
    grid: tuple[int, int],
) -> Figure:
    """The picture (height,width[,3]) first as it is, then for each word with its weights over the patches of a grid.

    Light is where a word looked; the darkest tenth of the light is left, so that the rest of the picture can be seen.
    """
    from matplotlib.figure import Figure

    count = len(words) + 1
    across = min(ACROSS, count)
    down = -(-count // across)
    figure = Figure(figsize=(across * INCHES, down * (INCHES + 0.25)), layout="constrained")
    frames = figure.subplots(down, across, squeeze=False).flat
    height, width = picture.shape[:2]
    for number, frame in enumerate(frames):
        frame.set_axis_off()
        if number >= count:
            continue
        light = np.ones((height, width), np.float32)
        if number:
            row = np.nan_to_num(np.asarray(weights[number - 1], np.float32)).reshape(grid)
            light = np.kron(row / (row.max() or 1.0), np.ones((height // grid[0], width // grid[1]))).astype(
                np.float32
            )
            light = 0.1 + 0.9 * light
        lit = picture * (light if picture.ndim == 2 else light[..., None])
        frame.imshow(lit, cmap="gray", vmin=0, vmax=1, interpolation="none")
        frame.set_title(words[number - 1] if number else "", fontsize=8, parse_math=False)
    return figure
