"""Figures of predictions: a map of what attended to what, below the picture it is laid over, or bars."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regard.observation import panels
from regard.observation.colours import norm, ramp
from regard.observation.figure_text import readable
from regard.support.paper_figure import PaperFigure
from regard_workbench.tasks.parts.shown import Looked

WIDEST, NARROWEST = 6.9, 4.3  # inches
CELL, THIN = 0.24, 0.035  # inches: the width of a named column, and of one of many
TALL, FLAT = 0.2, 0.55  # inches: the height of a row, and of the picture above a map
LOWEST = 0.6  # inches: the height of a map of few rows, whose scale must be readable
LETTER = 0.07  # inches of a character beside a row
TURNED = 0.06  # inches of a character below a column, beyond which names are turned
LONG = 46  # characters of a name beside a row
MANY = 40  # columns beyond which names are left out and columns are narrow
MOST_BARS = 24
MOST_LINES, LINE = 4, 0.14  # lines of a title, and inches of each


def prediction_figure(title: str, looked: Looked, picture: NDArray[np.float32] | None = None) -> Figure:
    """A heat map of rows and columns, or bars where there is one row for all.

    picture: (height, width) from 0 to 1, drawn above the columns, which are its parts from left to right.
    """
    with panels.looks():
        if not looked.rows:
            return _bars(title, looked)
        if _sentences(looked):
            turned = np.array(looked.weights).T.tolist()
            looked = Looked(turned, looked.rows, looked.columns, looked.source)
        return _map(title, looked, picture)


def _sentences(looked: Looked) -> bool:
    """Whether the columns have long names, which are read more easily beside rows."""
    return max(map(len, looked.columns), default=0) > 16 and len(looked.rows) < len(looked.columns)


def _map(title: str, looked: Looked, picture: NDArray[np.float32] | None) -> Figure:
    table = np.array(looked.weights, dtype=np.float32)
    rows, columns = table.shape
    aside = LETTER * min(LONG, max(map(len, looked.rows)))
    across = columns * (CELL if columns <= MANY else THIN)
    width = float(np.clip(across + aside + 0.9, NARROWEST, WIDEST))
    wide, tall = min(across, width - aside - 0.9), max(TALL * rows, LOWEST)
    above = [FLAT] if picture is not None else []
    figure = PaperFigure(figsize=(width, tall + sum(above) + 1.0), layout="constrained")
    frames = figure.subplots(1 + len(above), 1, sharex=True, squeeze=False, height_ratios=[*above, tall])[:, 0]
    frame = frames[-1]
    if picture is not None:
        _picture(frames[0], picture, columns)
    drawn = panels.shade(frame, table, norm("root", float(table.max(initial=0.0))), (rows, columns))
    frame.set_aspect("auto")
    panels.side(frame, "y", looked.rows, rows, tall, LONG)
    panels.side(frame, "x", looked.columns, columns, wide)
    if TURNED * max(map(len, looked.columns)) < (width - aside - 0.9) / columns:
        frame.tick_params(axis="x", rotation=0)  # few and short names need not be turned
    _heading(figure, frames[0], title, looked.source)
    panels.bar(figure, drawn, [frame], "root", "weight")
    return figure


def _picture(frame: Axes, picture: NDArray[np.float32], columns: int) -> None:
    """A picture over the whole width of the map."""
    frame.imshow(picture, cmap="Greys", aspect="auto", interpolation="none", extent=(-0.5, columns - 0.5, 0, 1))
    frame.set_yticks([])
    frame.tick_params(bottom=False, labelbottom=False)


def _bars(title: str, looked: Looked) -> Figure:
    """The largest weights, in the order of the columns."""
    weights = np.array(looked.weights[0])
    kept = sorted(np.argsort(-weights, kind="stable")[:MOST_BARS].tolist())
    names = [readable(looked.columns[at], LONG) for at in kept]
    figure = PaperFigure(figsize=(WIDEST * 0.75, TALL * len(kept) + 0.5), layout="constrained")
    frame = figure.add_subplot()
    frame.barh(range(len(kept)), weights[kept], color=ramp()(0.62), height=0.72)
    frame.set_yticks(range(len(kept)), names)
    frame.invert_yaxis()
    frame.set_xlabel("weight")
    frame.spines[["top", "right"]].set_visible(False)
    for label in frame.get_yticklabels():
        label.set_parse_math(False)
    _heading(figure, frame, title, looked.source)
    return figure


def _heading(figure: Figure, frame: Axes, title: str, source: str) -> None:
    """What was predicted, over the whole figure, which becomes taller by it; above a frame whose weights are drawn."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(title, int(width / 0.075), max_lines=MOST_LINES, placeholder=" …")
    figure.suptitle("\n".join(lines), fontsize=8.5, x=0.02, ha="left", parse_math=False)
    below = textwrap.wrap(source, int(width / 0.066))
    frame.set_title("\n".join(below), fontsize=6.5, loc="left", color=panels.MUTED, parse_math=False)
    figure.set_size_inches(width, height + LINE * (len(lines) + len(below)))
