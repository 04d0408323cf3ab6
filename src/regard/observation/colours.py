"""The colour maps of weights (white for 0, then one ramp of evenly falling lightness) and of effects of both signs.

They stay ordered in grey print and for colour-blind readers. The viewer's page uses the same colours.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize, PowerNorm
from numpy.typing import NDArray

from regard.errors import unknown_name

SCALES = ("root", "linear", "log")
LEAST = 1e-4  # the smallest weight of a logarithmic scale
BAD = "#c9ccd1"  # NaN
# Lightness, chroma and hue (degrees) in OKLab, from the faintest weight to the largest.
_STOPS = (
    (0.985, 0.008, 165.0),
    (0.86, 0.075, 178.0),
    (0.7, 0.105, 205.0),
    (0.53, 0.125, 243.0),
    (0.38, 0.13, 268.0),
    (0.24, 0.09, 285.0),
)
_BOTH_WAYS = (  # blue hurts, orange helps, as on the viewer's page
    (0.43, 0.13, 266.0),
    (0.58, 0.125, 248.0),
    (0.73, 0.095, 230.0),
    (0.87, 0.05, 215.0),
    (0.985, 0.0, 0.0),
    (0.87, 0.06, 68.0),
    (0.73, 0.125, 57.0),
    (0.58, 0.155, 48.0),
    (0.43, 0.14, 42.0),
)


@lru_cache(maxsize=1)
def ramp() -> Colormap:
    """256 colours, evenly spaced along the stops."""
    return ListedColormap(_between(_STOPS), name="regard").with_extremes(bad=BAD, under="white")


@lru_cache(maxsize=1)
def diverging() -> Colormap:
    """256 colours for effects of both signs: blue below 0, white at 0, orange above, equally dark at both ends."""
    return ListedColormap(_between(_BOTH_WAYS), name="regard-diverging").with_extremes(bad=BAD)


def _between(stops: tuple[tuple[float, float, float], ...]) -> NDArray[np.float64]:
    """256 colours, evenly spaced along stops of lightness, chroma and hue."""
    lightness, chroma, hue = np.array(stops).T
    turn = np.radians(hue)
    table = np.stack([lightness, chroma * np.cos(turn), chroma * np.sin(turn)], 1)
    at, stops_at = np.linspace(0, 1, 256), np.linspace(0, 1, len(table))
    return _rgb(np.stack([np.interp(at, stops_at, table[:, channel]) for channel in range(3)], 1))


def norm(scale: str, largest: float) -> Normalize:
    """The position of a weight on the ramp; `root` makes small weights visible."""
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    most = largest if largest > 0 else 1.0
    if scale == "log":
        return LogNorm(min(LEAST, most / 10), most)
    return PowerNorm(0.5, 0, most) if scale == "root" else Normalize(0, most)


def on_scale(table: NDArray[np.float32], shades: Normalize) -> np.ma.MaskedArray[Any, Any]:
    """A table ready to be coloured: NaN is masked, and on a log scale 0 is put below the smallest weight."""
    cells = np.ma.masked_invalid(table)
    if isinstance(shades, LogNorm):
        cells[cells <= 0] = float(shades.vmin or LEAST) / 10
    return cells


def _rgb(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """OKLab (n,3) → sRGB (n,3) from 0 to 1, by Ottosson's matrices."""
    cones = colours @ np.array(
        [[1, 1, 1], [0.3963377774, -0.1055613458, -0.0894841775], [0.2158037573, -0.0638541728, -1.2914855480]]
    )
    linear = cones**3 @ np.array(
        [
            [4.0767416621, -1.2684380046, -0.0041960863],
            [-3.3077115913, 2.6097574011, -0.7034186147],
            [0.2309699292, -0.3413193965, 1.7076147010],
        ]
    )
    linear = linear.clip(0, 1)
    bright = 1.055 * linear ** (1 / 2.4) - 0.055
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, bright).clip(0, 1), np.float64)
