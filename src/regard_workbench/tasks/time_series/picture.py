"""Pictures of series: a window on which pages lay attention, and a forecast with what it looked back at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT, MARGIN = 96, 4  # pixels
WIDTH = 672  # pixels, or more where the window has more steps
THICKNESS = 2
MOST_COLUMNS = 8  # panels of a figure
INCHES = (7.0, 1.5)  # width, and height of a panel
SHADE, LINE, AHEAD = "#2a7fc4", "#444444", "#c4502a"


def line_picture(values: NDArray[np.float32], height: int = HEIGHT) -> NDArray[np.float32]:
    """(height, width) from 0 to 1: a light line on dark ground, the same number of pixels for each step."""
    pixels_per_step = max(1, round(WIDTH / len(values)))
    picture = np.zeros((height, pixels_per_step * len(values)), dtype=np.float32)
    low, high = float(values.min()), float(values.max())
    at = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    rows = (height - 1 - MARGIN) - at * (height - 1 - 2 * MARGIN)
    # The middle of each step, and straight lines between them.
    middles = (np.arange(len(values)) + 0.5) * pixels_per_step
    heights = np.interp(np.arange(picture.shape[1] + 1), middles, rows)
    for column in range(picture.shape[1]):
        first, last = sorted((heights[column], heights[column + 1]))
        picture[max(0, round(first) - THICKNESS // 2) : round(last) + THICKNESS // 2 + 1, column] = 1.0
    return picture


def forecast_figure(
    names: Sequence[str],
    past: NDArray[np.float64],
    ahead: NDArray[np.float64],
    times: Sequence[str],
    weights: Sequence[float],
    true: NDArray[np.float64] | None = None,
) -> Figure:
    """Columns below each other: values (n,columns) in grey, the forecast (m,columns) after them in red.

    true: what followed (m,columns), where it is known: dotted; NaN where a value is missing.
    weights: of equal stretches of the window, drawn as shades behind the first column; empty: none are known.
    """
    from regard.support.paper_figure import PaperFigure

    count, steps = min(len(names), MOST_COLUMNS), len(past)
    figure = PaperFigure(figsize=(INCHES[0], 0.6 + INCHES[1] * count), layout="constrained")
    frames = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for number, frame in enumerate(frames):
        frame.plot(range(steps), past[:, number], color=LINE, linewidth=0.9)
        # The forecast is joined to the last value.
        joined = np.concatenate([past[-1:, number], ahead[:, number]])
        frame.plot(range(steps - 1, steps + len(ahead)), joined, color=AHEAD, linewidth=1.1)
        if true is not None:
            frame.plot(
                range(steps, steps + len(true)), true[:, number], color=LINE, linewidth=0.9, linestyle=(0, (2, 1.5))
            )
        frame.axvline(steps - 0.5, color=LINE, linewidth=0.5, linestyle=":")
        frame.set_ylabel(names[number], fontsize=8)
        frame.tick_params(labelsize=7)
    width, largest = steps / max(1, len(weights)), max(weights, default=0.0)
    for number, weight in enumerate(weights):
        shade = weight / largest if largest > 0 else 0.0
        span = (number * width - 0.5, (number + 1) * width - 0.5)
        frames[0].axvspan(*span, color=SHADE, alpha=0.5 * shade, linewidth=0)
    marks = sorted({0, steps // 2, steps - 1})
    frames[-1].set_xticks(marks, [times[mark] for mark in marks], fontsize=7)
    if weights:
        frames[0].set_title(
            f"{names[0]}: shades are what the forecast looked back at (up to {largest:.2g})", fontsize=8
        )
    return figure
