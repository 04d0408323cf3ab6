"""A window of a series as a small picture, on which pages and figures lay attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEIGHT, MARGIN = 96, 4  # pixels
WIDTH = 672  # pixels, or more where the window has more steps
THICKNESS = 2


def line_picture(values: NDArray[np.float32], height: int = HEIGHT) -> NDArray[np.float32]:
    """(height, width) from 0 to 1: a dark line on light ground, the same number of pixels for each step."""
    each = max(1, round(WIDTH / len(values)))
    picture = np.ones((height, each * len(values)), dtype=np.float32)
    low, high = float(values.min()), float(values.max())
    at = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    rows = (height - 1 - MARGIN) - at * (height - 1 - 2 * MARGIN)
    # The middle of each step, and straight lines between them.
    middles = (np.arange(len(values)) + 0.5) * each
    heights = np.interp(np.arange(picture.shape[1] + 1), middles, rows)
    for column in range(picture.shape[1]):
        first, last = sorted((heights[column], heights[column + 1]))
        picture[max(0, round(first) - THICKNESS // 2) : round(last) + THICKNESS // 2 + 1, column] = 0.0
    return picture
