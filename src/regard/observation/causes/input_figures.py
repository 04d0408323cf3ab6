"""Figures about the inputs: scores by several methods, and maps beside random ones."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from regard.observation import panels
from regard.observation.causes.attributions import InputAttributions
from regard.observation.causes.faithfulness import Faithfulness
from regard.observation.causes.figures import heat_map, heat_maps, wrapped
from regard.observation.figure_text import readable
from regard.observation.panels import Floats
from regard.observation.plotting import ONE_COLUMN, TWO_COLUMNS, shortest

MARK, BAND = "#2a5fb4", "#c9ccd1"


def plot_attributions(found: InputAttributions, *, width: float | None = None, title: str | None = None) -> Figure:
    """Each method's scores in a row, relative to its largest; pictures as maps of patches."""
    names = list(found.scores)
    table = np.stack([_relative(found.scores[name]) for name in names])
    agree = [value for value in found.agreement().values() if np.isfinite(value)]
    heading = title or (
        f"{found.measured} = {found.value:.3g}; completeness gap {found.relative_gap:.1%}; "
        f"rank correlations {min(agree, default=0):+.2f} to {max(agree, default=0):+.2f}"
    )
    if found.grid is not None:
        rows, columns = ([""] * count for count in found.grid)
        maps = [row.reshape(found.grid) for row in table]
        return heat_maps(maps, names, rows, columns, "relative score", heading, width=width, largest=1.0)
    labels = found.tokens or [str(at) for at in range(table.shape[1])]
    return heat_map(table, names, labels, "relative score", heading, width=width, largest=1.0)


def plot_faithfulness(
    found: Faithfulness, *, most: int = 24, width: float | None = None, title: str | None = None
) -> Figure:
    """Maps as points, random maps as bands that hold 95 % of them: left comprehensiveness, right sufficiency."""
    shown = found.maps if len(found.maps) <= most else found.best(most)
    dotted = [name for name in dict.fromkeys(judged.name for judged in shown) if "." in name]  # of sites
    short = dict(zip(dotted, shortest(dotted), strict=True))
    labels = [
        short.get(judged.name, judged.name) + ("" if judged.head is None else f" head {judged.head}")
        for judged in shown
    ]
    figure_width = width or (TWO_COLUMNS if len(shown) > 4 else ONE_COLUMN * 1.4)
    with panels.looks():
        figure, frames = panels.frames(1, 2, figure_width, 0.17 * len(shown) + 0.9)
        for frame, name, better in zip(frames, ("comprehensiveness", "sufficiency"), ("→", "←"), strict=True):
            for row, judged in enumerate(shown):
                number = getattr(judged, name)
                frame.barh(row, number.high - number.low, 0.7, number.low, color=BAND, linewidth=0)
                frame.plot([number.random] * 2, [row - 0.35, row + 0.35], color="white", linewidth=0.8)
                frame.plot(
                    number.value,
                    row,
                    "o",
                    markersize=3.4,
                    markeredgewidth=0.9,
                    color=MARK,
                    markerfacecolor=MARK if judged.matters else "white",
                )
            frame.axvline(0, color=panels.MUTED, linewidth=0.4, zorder=0)
            frame.set_ylim(len(shown) - 0.5, -0.5)
            frame.set_xlabel(f"{name} (better {better})")
            frame.spines[["top", "right"]].set_visible(False)
        panels.side(frames[0], "y", [readable(label, 32) for label in labels], len(labels), 0.17 * len(labels), 32)
        panels.unmarked(frames[1], "y")
        heading = title or f"{found.measured} = {found.value:.3g}; filled: shown to matter; grey: random maps"
        figure.suptitle(wrapped(heading, figure_width - 0.2, 7), fontsize=7)
        return panels.trimmed(figure)


def _relative(scores: Tensor) -> Floats:
    """Scores relative to the largest; zeros where all are."""
    return (scores / scores.abs().max().clamp(min=1e-300)).float().numpy()
