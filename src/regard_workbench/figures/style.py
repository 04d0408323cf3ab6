"""The style of every figure: colour, dash and marker of each contestant, sizes, fonts.

Colours can be told apart with colour blindness, and markers in a grey print. Of up to 77 contestants no two share
colour and marker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from regard.support.paper_figure import PaperFigure
from regard_workbench.tasks.figures.colours import COLOURS, GRID, INK, MUTED
from regard_workbench.tasks.measures.metrics import SHARE, Metric

DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.6, 1.2, 1.6)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
WIDTH, HEIGHT = 4.2, 2.7  # inches: a column of a paper, and of a page on a phone
LONGEST_NAME = 30
NAMED = 4  # up to so many contestants, figures show names; beyond, numbers
FEW = 8  # up to so many contestants, curves also show every seed

_RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name is a $
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "path.simplify": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "regard",
}


@dataclass(frozen=True)
class Key:
    """The style of one contestant in all figures."""

    number: int  # from 1, in the order of the rows
    label: str
    name: str  # short enough for a figure

    @property
    def colour(self) -> str:
        """One of seven, in turn."""
        return COLOURS[(self.number - 1) % len(COLOURS)]

    @property
    def dash(self) -> Any:
        """The next one with each round through the colours."""
        return DASHES[(self.number - 1) // len(COLOURS) % len(DASHES)]

    @property
    def marker(self) -> str:
        """One of eleven, in turn."""
        return MARKERS[(self.number - 1) % len(MARKERS)]

    def group(self, part: str) -> str:
        """The id of a group of shapes of this contestant."""
        return f"key{self.number}-{part}"


Keys = dict[str, Key]  # by label


@dataclass(frozen=True)
class Drawing:
    """A figure with its title and its text alternative."""

    name: str  # of its files
    title: str
    alt: str
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)  # group of shapes → tooltip


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A name with its middle left out if it is too long, and unprintable characters replaced."""
    clean = "".join(letter if letter.isprintable() else "�" for letter in name)
    if len(clean) <= longest:
        return clean
    ahead = longest * 2 // 3
    return f"{clean[:ahead]}…{clean[len(clean) - (longest - ahead - 1) :]}"


def tag(key: Key, everyone: Keys) -> str:
    """The label of a curve or a point: the name for few contestants, else the number."""
    return key.name if len(everyone) <= NAMED else str(key.number)


@contextmanager
def style() -> Iterator[None]:
    """Inside, figures use the style of this file instead of the user's matplotlib settings."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


def blank(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A transparent figure with one axes."""
    figure = PaperFigure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    frame = figure.add_subplot()
    frame.patch.set_alpha(0)
    return figure, frame


def titled(metric: Metric) -> str:
    """The name of a metric as people write it, with its unit."""
    return shortened(metric.name.replace("_", " ")) + (", %" if metric.unit == SHARE else "")


def in_percent(axis: Any, metric: Metric) -> None:
    """Write shares as per cent along an axis."""
    if metric.unit == SHARE:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))


def number_of(value: float, metric: Metric) -> str:
    """A result as people read it; shares with two decimals, since contestants are often close."""
    return f"{100 * value:.2f} %" if metric.unit == SHARE else metric.text(value)


def logarithmic(frame: Axes, which: str) -> None:
    """Make an axis logarithmic, with tick labels as plain numbers."""
    axis = frame.xaxis if which == "x" else frame.yaxis
    (frame.set_xscale if which == "x" else frame.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    wide = low > 0 and math.log10(high / low) > 1.5
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number in a few characters: 0.05, 1.5k, 20M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
