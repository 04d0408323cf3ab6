"""Parts of an attention figure: axes of the right size, shaded maps, axis labels, the colour bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from regard.observation.colours import LEAST, on_scale, ramp
from regard.observation.figure_text import LETTERS, families, thinned
from regard.support.paper_figure import PaperFigure

Floats = NDArray[np.float32]
INK, MUTED = "#1b1f24", "#5b6570"
EDGE = 0.02  # inches of margin
_BAR = 0.1  # inches: the width of the colour bar
_STEPS = [size * 10**power for power in range(12) for size in (1, 2, 5)]  # steps between numbers on an axis
_GAP = 0.06  # between the maps of a mosaic, which are 1 wide
_NARROW, _WIDE = 0.25, 2.0  # limits of height over width: a thinner map is stretched
_LETTERS = (4.2, 6.5)  # points: the smallest and largest labels
_LINE = 1.12 / 72  # inches per point of label size
_TICKS = {
    "root": (0.0, 0.01, 0.1, 0.3, 0.6, 1.0),
    "linear": (0.0, 0.25, 0.5, 0.75, 1.0),
    "log": (LEAST, 1e-3, 0.01, 0.1, 1.0),
}
_LOOKS: Any = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "axes.linewidth": 0.5,
    "axes.edgecolor": MUTED,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 1.5,
    "ytick.major.size": 1.5,
    "xtick.major.width": 0.4,
    "ytick.major.width": 0.4,
    "xtick.major.pad": 1.5,
    "ytick.major.pad": 1.5,
    "axes.titlepad": 2.5,
    "axes.labelpad": 2.0,
    "text.parse_math": False,
    "text.usetex": False,  # a $ in a token is a $
}


@contextmanager
def looks() -> Iterator[None]:
    """Apply the style of this file inside the block, whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_LOOKS, "font.family": families()})
        yield


def frames(down: int, beside: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `down` × `beside` axes; `trimmed` sets its final height."""
    engine = ConstrainedLayoutEngine(w_pad=EDGE, h_pad=EDGE, wspace=0.0, hspace=0.0, compress=True)
    figure = PaperFigure(figsize=(width, height), layout=engine)
    return figure, list(figure.subplots(down, beside, squeeze=False).flat)


def trimmed(figure: Figure) -> Figure:
    """The figure cut to the height of its content; the width, which sets the size of the maps, stays."""
    figure.draw_without_rendering()
    frames = [box for frame in figure.axes if (box := frame.get_tightbbox()) is not None]
    outside = [text for text in (figure._suptitle, figure._supxlabel) if text is not None]  # type: ignore[attr-defined]
    height = Bbox.union(frames).height + sum(text.get_window_extent().height for text in outside)
    figure.set_size_inches(figure.get_figwidth(), height / figure.dpi + 2 * EDGE * (1 + len(outside)))
    return figure


def ratio(queries: int, keys: int) -> float:
    """Height over width of a map."""
    return float(np.clip(queries / max(keys, 1), _NARROW, _WIDE))


def shade(frame: Axes, table: Floats, shades: Normalize, sizes: tuple[int, int]) -> AxesImage:
    """A map in colours. Its axes count positions (queries, keys), also where a cell is several positions."""
    queries, keys = max(sizes[0], 1), max(sizes[1], 1)
    cells = on_scale(table, shades) if table.size else np.ma.masked_all((1, 1))
    return frame.imshow(
        cells,
        cmap=ramp(),
        norm=shades,
        interpolation="none",
        extent=(-0.5, keys - 0.5, queries - 0.5, -0.5),
        aspect=ratio(*sizes) * keys / queries,
    )


def mosaic(
    frame: Axes, rows: Sequence[Sequence[Floats]], forms: Sequence[float], beside: int, shades: Normalize
) -> AxesImage | None:
    """Rows of maps in one axes, each 1 wide and `forms` high; returns the last image."""
    drawn: AxesImage | None = None
    top = 0.0
    centres = []
    for tables, form in zip(rows, forms, strict=True):
        for column, table in enumerate(tables):
            left = column * (1 + _GAP)
            cells = on_scale(table, shades) if table.size else np.ma.masked_all((1, 1))
            drawn = frame.imshow(
                cells, cmap=ramp(), norm=shades, interpolation="none", extent=(left, left + 1, top + form, top)
            )
            edge = Rectangle((left, top), 1, form, fill=False, linewidth=0.4, edgecolor=MUTED, clip_on=False)
            frame.add_patch(edge)
        centres.append(top + form / 2)
        top += form + _GAP
    frame.set(
        xlim=(0, beside * (1 + _GAP) - _GAP),
        ylim=(max(top - _GAP, _GAP), 0),
        aspect="equal",
        xticks=[column * (1 + _GAP) + 0.5 for column in range(beside)],
        yticks=centres,
    )
    frame.spines[:].set_visible(False)
    return drawn


def named_outside(frame: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Label the columns and rows of a mosaic."""
    frame.tick_params(length=0, labeltop=True, labelbottom=False, pad=2)
    for axis, names in ((frame.xaxis, columns), (frame.yaxis, rows)):
        axis.set_ticklabels(names)
        for label in axis.get_ticklabels():
            label.set_parse_math(False)


def side(
    frame: Axes, which: str, labels: Sequence[str] | None, count: int, inches: float, longest: int = LETTERS
) -> None:
    """Labels along one axis, as many as fit, cut to `longest` characters; without labels, numbers from 0."""
    axis = frame.xaxis if which == "x" else frame.yaxis
    smallest, largest = _LETTERS
    if labels is None:
        step = next(step for step in _STEPS if 7 * step >= count)
        marks = [(index, str(index)) for index in range(0, count, step)]
        size = 6.0
    else:
        size = float(np.clip(inches / max(count, 1) / _LINE, smallest, largest))
        marks = thinned(labels, int(inches / (size * _LINE)), longest)
    axis.set_ticks([index for index, _ in marks], [text for _, text in marks])
    turned = which == "x" and labels is not None and any(len(text) > 1 for _, text in marks)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)
        label.set_fontsize(size)
        if turned:
            label.set(rotation=90, ha="center", va="top")


def unmarked(frame: Axes, which: str) -> None:
    """Remove the labels of one axis."""
    (frame.xaxis if which == "x" else frame.yaxis).set_ticks([])


def bar(figure: Figure, drawn: AxesImage, beside: Sequence[Axes], scale: str, words: str) -> None:
    """The colour bar."""
    colourbar = figure.colorbar(drawn, ax=list(beside), fraction=0.05, aspect=figure.get_figheight() / _BAR, pad=0.01)
    low, high = (float(np.asarray(end).item()) for end in drawn.get_clim())
    ticks = [value for value in _TICKS[scale] if low <= value < 0.85 * high]
    if len(ticks) < 3 and scale != "log":  # all weights of a long map are small
        ticks = [share * high for share in _TICKS[scale] if share < 0.85]
    colourbar.ax.yaxis.set_major_locator(FixedLocator([*ticks, high]))
    colourbar.ax.yaxis.set_minor_locator(NullLocator())
    colourbar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    colourbar.set_label(words, fontsize=6.5)
    colourbar.outline.set_linewidth(0.4)
