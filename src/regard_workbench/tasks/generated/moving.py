"""Videos of a figure that moves over a canvas, and may leave it.

>>> import numpy as np
>>> clip = moving(np.ones((2, 2), np.float32), side=5, frames=3, start=(2, 0), step=(1, 0))
>>> clip[:, :, 0].tolist()
[[0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Pixels downwards and to the right, for each step.
MOTIONS = {
    "right": (0, 1),
    "down and right": (1, 1),
    "down": (1, 0),
    "down and left": (1, -1),
    "left": (0, -1),
    "up and left": (-1, -1),
    "up": (-1, 0),
    "up and right": (-1, 1),
}


def moving(
    figure: NDArray[np.float32], side: int, frames: int, start: tuple[int, int], step: tuple[int, int]
) -> NDArray[np.float32]:
    """A figure on a canvas of side × side pixels, (frames,side,side). `start`: its upper left corner at first;
    `step`: how far it moves down and to the right from one frame to the next."""
    height, width = figure.shape
    # Around the canvas lies a margin, so that what leaves it needs no cutting.
    margin = max(height, width) + (frames - 1) * max(abs(offset) for offset in step)
    canvas = np.zeros((frames, side + 2 * margin, side + 2 * margin), np.float32)
    for number in range(frames):
        top, left = (margin + begin + number * by for begin, by in zip(start, step, strict=True))
        canvas[number, top : top + height, left : left + width] = figure
    return np.ascontiguousarray(canvas[:, margin : margin + side, margin : margin + side])
