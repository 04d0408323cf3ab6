"""Attention weights as a figure: a heat map, small ones for each head, or a heat map over an image.

Weights are shown as the opacity of one blue, which is readable on white and on dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from regard.observation.figure_text import readable
from regard.support.paper_figure import PaperFigure
from regard_workbench.figures.style import WIDTH, Drawing
from regard_workbench.inspection.attribution import Attribution
from regard_workbench.tasks.figures.colours import COLOURS, INK
from regard_workbench.tasks.figures.overlay import shaded

SHADE = (42 / 255, 127 / 255, 196 / 255)
MOST_HEADS = 8
MOST_ROWS, ACROSS = 24, 6  # pictures with one row of weights each, and how many side by side
CELL = 0.24  # inches at most
LEAST, MOST = 0.9, 3.4  # inches: the height of a heat map
HEAD = 0.8  # inches: the height of a small heat map
TICKS = 16  # most numbers on an axis
MOST_CELLS = 4096  # of an image that is drawn cell by cell
Array = NDArray[np.float64]
Grid = tuple[int, int]


def picture(attribution: Attribution, name: str, image: Array | None = None, grid: Grid | None = None) -> Drawing:
    """A heat map of the weights; over the image, where the columns are its parts: `grid` rows and columns of them."""
    weights = np.asarray(attribution.weights, dtype=np.float64)
    table = np.atleast_2d(weights)
    over = image if attribution.inputs else None
    tall = _height(table, over is not None) if weights.ndim == 2 else 0.0
    heads = np.empty((0, 0, 0)) if attribution.heads is None else np.asarray(attribution.heads, dtype=np.float64)
    shown = heads[:MOST_HEADS]
    heights = [max(tall, 1.5 if over is not None else LEAST) + 0.75]
    row_by_row = over is not None and _one_each(weights, grid)
    if row_by_row:
        heights = [(WIDTH / ACROSS + 0.15) * -(-len(table) // ACROSS)]
    if len(shown):
        heights.append((HEAD + 0.25) * -(-len(shown) // 4))
    figure = PaperFigure(figsize=(WIDTH, sum(heights)), layout="constrained")
    figure.patch.set_alpha(0)
    subfigures = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for subfigure in subfigures:
        subfigure.patch.set_alpha(0)
    if row_by_row:
        assert over is not None and grid is not None
        _each_row(subfigures[0], over, table, attribution.rows, grid)
    else:
        place = None if over is None else (over, grid)
        _main(subfigures[0], table if weights.ndim == 2 else None, table.mean(0), attribution, place)
    if len(shown):
        frames = subfigures[1].subplots(-(-len(shown) // 4), 4, squeeze=False).flat
        for number, frame in enumerate(frames):
            if number >= len(shown):
                frame.set_axis_off()
            else:
                _shades(frame, shown[number])
                frame.set(xticks=[], yticks=[])
                frame.set_title(f"head {number}, up to {shown[number].max():.2g}", fontsize=6.5)
    return Drawing(name, attribution.source, _words(attribution, table), figure)


def _one_each(weights: Array, grid: Grid | None) -> bool:
    """Whether every row (a word, a glimpse, a query) gets a picture of its own: few rows over a grid of patches."""
    return (
        grid is not None
        and min(grid) > 1
        and weights.ndim == 2
        and weights.shape[1] == grid[0] * grid[1]
        and 1 < len(weights) <= MOST_ROWS
    )


def _each_row(figure: Figure, image: Array, table: Array, names: Sequence[str], grid: Grid) -> None:
    """The image once for each row of weights, in reading order."""
    frames = figure.subplots(-(-len(table) // ACROSS), ACROSS, squeeze=False).flat
    for number, frame in enumerate(frames):
        frame.set_axis_off()
        if number < len(table):
            drawn = shaded(np.asarray(image, np.float32), table[number].tolist(), grid)
            frame.imshow(drawn, interpolation="none")
            title = readable(names[number]) if number < len(names) else str(number)
            frame.set_title(title, fontsize=6.5, parse_math=False)


def _height(table: Array, beside: bool) -> float:
    """The height of a heat map in inches: by its aspect ratio if it is nearly square, in the width beside an image."""
    rows, columns = table.shape
    height = CELL * rows
    if _square(table):
        height = min(height, (0.58 if beside else 0.88) * WIDTH * rows / columns)
    return float(np.clip(height, LEAST, MOST))


def _square(table: Array) -> bool:
    return bool(0.4 < table.shape[0] / table.shape[1] < 2.5)


def _main(
    figure: Figure,
    table: Array | None,
    received: Array,
    attribution: Attribution,
    place: tuple[Array, Grid | None] | None,
) -> None:
    if place is None:
        frame = figure.add_subplot()
        _table(frame, table, received, attribution)
        return
    left, right = figure.subplots(1, 2, width_ratios=[1.0, 1.6])
    image, grid = place
    _over(left, image, received, grid)
    _table(right, table, received, attribution)


def _table(frame: Axes, table: Array | None, received: Array, attribution: Attribution) -> None:
    columns, title = ticks(attribution.columns)
    if table is None:
        frame.bar(range(len(received)), received, color=COLOURS[0], width=0.8)
        frame.set_ylabel("weight")
        frame.set_xlim(-0.6, len(received) - 0.4)
    else:
        _shades(frame, table)
        rows, aside = ticks(attribution.rows)
        frame.set_yticks([index for index, _ in rows], [text for _, text in rows], fontsize=6.5)
        frame.set_ylabel(aside)
        frame.set_title(f"up to {table.max():.2g}", fontsize=6.5, loc="right")
    turned = any(len(text) > 2 for _, text in columns)
    frame.set_xticks([index for index, _ in columns], [text for _, text in columns], fontsize=6.5)
    if turned:
        for label in frame.get_xticklabels():
            label.set(rotation=60, ha="right", rotation_mode="anchor")
    frame.set_xlabel(title)
    frame.tick_params(length=0)


def _shades(frame: Axes, table: Array) -> None:
    """A heat map (rows, columns); opacity is √(value / largest value), so that small values are visible."""
    finite = np.nan_to_num(table, nan=0.0, posinf=0.0, neginf=0.0)
    colours = np.empty((*table.shape, 4))
    colours[..., :3] = SHADE
    colours[..., 3] = np.sqrt(np.clip(finite / (finite.max() or 1.0), 0, 1))
    frame.imshow(colours, interpolation="none", aspect="equal" if _square(table) else "auto")
    frame.grid(visible=False)
    frame.patch.set_alpha(0)
    for side in frame.spines.values():
        side.set_visible(True)


def _over(frame: Axes, image: Array, received: Array, grid: Grid | None) -> None:
    """The image, and over it the weight of each of its parts; without a grid, of its rows or pixels."""
    high, wide = image.shape[:2]
    rows, columns = grid or (high, 1 if len(received) == high else wide)
    shares = received.reshape(rows, columns) / (received.max() or 1.0)
    cells = [(image, INK, 0.75), (shares, COLOURS[0], 0.65)]
    if image.ndim == 3:  # in colours
        frame.imshow(np.clip(image, 0, 1), extent=(0, wide, high, 0), interpolation="none")
        cells = cells[1:]
    elif image.size > MOST_CELLS:  # too many for a rectangle each
        ink = np.empty((high, wide, 4))
        ink[..., :3], ink[..., 3] = to_rgb(INK), 0.75 * image
        frame.imshow(ink, extent=(0, wide, high, 0), interpolation="none")
        cells = cells[1:]
    for table, colour, most in cells:
        height, width = high / len(table), wide / table.shape[1]
        for (row, column), share in np.ndenumerate(table):
            if share > 0.01:
                corner = (column * width, row * height)
                cell = Rectangle(corner, width, height, facecolor=colour, alpha=round(most * share, 2), linewidth=0)
                frame.add_patch(cell)
                cell.set_snap(True)
    shape = "equal" if high == wide else "auto"
    frame.set(xlim=(0, wide), ylim=(high, 0), aspect=shape, xticks=[], yticks=[])
    frame.grid(visible=False)
    frame.spines[:].set_visible(False)
    frame.set_title("the input", fontsize=6.5)


def ticks(names: Sequence[str]) -> tuple[list[tuple[int, str]], str]:
    """Tick positions with labels, and the axis title; names like "row 3" become numbers with the title "row"."""
    words = {name.rpartition(" ")[0] for name in names}
    numbered = all(name.rpartition(" ")[2].isdecimal() for name in names) and len(words) == 1
    if numbered and names:
        step = -(-len(names) // TICKS)
        return [(index, names[index].rpartition(" ")[2]) for index in range(0, len(names), step)], words.pop()
    return [(index, readable(name)) for index, name in enumerate(names)], ""


def _words(attribution: Attribution, table: Array) -> str:
    """The text alternative: the source of the weights, and the largest of them."""
    largest = np.argsort(-table, axis=None, kind="stable")[:3]
    indexes = [np.unravel_index(int(index), table.shape) for index in largest]
    pairs = []
    for row, column in indexes:
        who = f"{attribution.rows[row]} to " if attribution.rows else ""
        pairs.append(f"{who}{attribution.columns[column]} {table[row, column]:.2g}")
    return f"{attribution.source} ({attribution.how}). Largest weights: {'; '.join(pairs)}."
