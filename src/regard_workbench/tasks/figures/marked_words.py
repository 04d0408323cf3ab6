"""A sentence with its named parts marked, in a colour for each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard_workbench.tasks.figures.colours import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, LINE = 6.9, 0.62  # inches
SPACE, SIZE = 0.09, 11  # inches between words, points of a letter


def marked_words_figure(words: Sequence[str], spans: Sequence[tuple[int, int, str]]) -> Figure:
    """Words in lines; spans (first, last, type) have a coloured ground, and their type below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patches import FancyBboxPatch

    from regard.support.paper_figure import PaperFigure

    figure = PaperFigure(figsize=(WIDTH, LINE))
    canvas = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()

    def width(text: str) -> float:
        drawn = figure.text(0, 0, text, fontsize=SIZE, parse_math=False)
        inches = drawn.get_window_extent(renderer).width / figure.dpi
        drawn.remove()
        return inches

    kinds = {kind: COLOURS[n % len(COLOURS)] for n, kind in enumerate(sorted({kind for *_, kind in spans}))}
    span_at = {at: (first, last, kind) for first, last, kind in spans for at in range(first, last + 1)}
    groups = [
        range(at, span_at[at][1] + 1 if at in span_at else at + 1)
        for at in range(len(words))
        if at not in span_at or span_at[at][0] == at
    ]
    placed: list[tuple[float, int, str, str]] = []
    x, line = 0.15, 0
    for group in groups:
        text = " ".join(words[at] for at in group)
        wide = width(text)
        if x + wide > WIDTH - 0.15 and x > 0.15:
            x, line = 0.15, line + 1
        x += SPACE / 2 if group[0] in span_at else 0.0
        placed.append((x, line, text, span_at[group[0]][2] if group[0] in span_at else ""))
        x += wide + (1.5 * SPACE if group[0] in span_at else SPACE)
    height = LINE * (line + 1) + 0.1
    figure.set_size_inches(WIDTH, height)
    frame = figure.add_axes((0, 0, 1, 1))
    frame.set(xlim=(0, WIDTH), ylim=(height, 0))
    frame.set_axis_off()
    for x, line, text, kind in placed:
        y = LINE * line + 0.28
        if kind:
            box = FancyBboxPatch(
                (x - 0.04, y - 0.15),
                width(text) + 0.08,
                0.27,
                boxstyle="round,pad=0.02,rounding_size=0.05",
                facecolor=kinds[kind],
                alpha=0.2,
                edgecolor=kinds[kind],
                linewidth=0.8,
            )
            frame.add_patch(box)
            frame.text(x, y + 0.27, kind, fontsize=7, color=kinds[kind], va="center", parse_math=False)
        frame.text(x, y, text, fontsize=SIZE, color=INK, va="center", parse_math=False)
    return figure
