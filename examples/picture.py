"""The tour's figure: a panel of weight maps with one colour scale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")  # a file is wanted, no window
import matplotlib.pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

INK, FAINT, HIDDEN = "#1b2430", "#6b7685", "#eceae4"
# White to deep blue, darkening evenly, so that grey-scale prints and colour-blind readers see the same order.
INKS = LinearSegmentedColormap.from_list("ink", ["#ffffff", "#d3e4f0", "#85b8d9", "#3b7fb5", "#174a7c", "#0a2346"])
SCALE = PowerNorm(0.6, vmin=0.0, vmax=1.0)  # lifts the small weights that a linear scale would lose


@dataclass
class Panel:
    """One weight map: `weights` and `visible` are (q, k)."""

    title: str
    subtitle: str
    weights: np.ndarray
    visible: np.ndarray
    entropy: float


def draw(panels: list[Panel], words: list[str], out: Path, columns: int = 4) -> None:
    """Save the panels as a grid; word labels stand at the left and at the foot, where the eye enters."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.35 * columns + 0.9, 3.75 * rows + 0.9), sharex=True, sharey=True, squeeze=False
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        _map(axis, panel, words)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.subplots_adjust(left=0.075, right=0.925, top=0.865, bottom=0.115, wspace=0.07, hspace=0.27)
    figure.text(0.075, 0.965, "Eight attentions, one call each", fontsize=17, fontweight="bold", color=INK, va="center")
    figure.text(
        0.075,
        0.933,
        "Each row is a word that looks; the columns are the words it looks at. "
        "Grey: hidden by the mask. H: mean entropy in nats.",
        fontsize=10.5,
        color=FAINT,
        va="center",
    )
    _colour_bar(figure)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=170, facecolor="white")
    plt.close(figure)


def _map(axis: plt.Axes, panel: Panel, words: list[str]) -> None:
    shown = np.ma.masked_where(~panel.visible, panel.weights)
    axis.set_facecolor(HIDDEN)
    axis.pcolormesh(shown, cmap=INKS, norm=SCALE, edgecolors="white", linewidth=0.9)
    axis.set_aspect("equal")
    axis.set_xlim(0, len(words))
    axis.set_ylim(len(words), 0)
    ticks = np.arange(len(words)) + 0.5
    axis.set_xticks(ticks, words, rotation=90, fontsize=9, color=INK)
    axis.set_yticks(ticks, words, fontsize=9, color=INK)
    axis.tick_params(length=0, pad=3)
    for side in axis.spines.values():
        side.set(color="#c9c6be", linewidth=0.8)
    axis.text(0, 1.085, panel.title, transform=axis.transAxes, fontsize=12, fontweight="bold", color=INK, va="center")
    axis.text(
        1, 1.085, f"H {panel.entropy:.2f}", transform=axis.transAxes, fontsize=9.5, color=FAINT, ha="right", va="center"
    )
    axis.text(
        0, 1.03, panel.subtitle, transform=axis.transAxes, fontsize=7.6, color=FAINT, va="center", family="monospace"
    )


def _colour_bar(figure: plt.Figure) -> None:
    box = figure.add_axes((0.942, 0.3, 0.011, 0.4))
    bar = figure.colorbar(ScalarMappable(norm=SCALE, cmap=INKS), cax=box, ticks=[0, 0.05, 0.2, 0.4, 0.6, 0.8, 1])
    bar.ax.set_yticklabels(["0", ".05", ".2", ".4", ".6", ".8", "1"], fontsize=9, color=INK)
    bar.ax.tick_params(length=0, pad=4)
    bar.ax.set_title("weight", fontsize=9.5, color=INK, pad=8)
    bar.outline.set(edgecolor="#c9c6be", linewidth=0.8)
