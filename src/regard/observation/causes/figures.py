"""Figures of causes: effects of both signs as heat maps, blue below zero, orange above."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from regard.observation import panels
from regard.observation.causes.contributions import Contributions
from regard.observation.causes.lens import BEFORE, LogitLens
from regard.observation.causes.result import PatchResult
from regard.observation.colours import diverging, ramp
from regard.observation.figure_text import WIDE, readable
from regard.observation.panels import Floats
from regard.observation.plotting import ONE_COLUMN, TWO_COLUMNS, shortest
from regard.support.arguments import finite_number

CELL = 0.26  # inches: the least width of a cell that holds a number
MOST_LETTERS = 24  # characters of a label beside a row
PANELS = 3  # maps beside each other


def plot_patches(
    found: PatchResult, *, width: float | None = None, largest: float | None = None, title: str | None = None
) -> Figure:
    """A heat map of what each patch recovers.

    Args:
        found: the result of `seen.patch` or `seen.patch_paths`.
        width: inches; by default as wide as the cells need, at most a page.
        largest: the effect of the last colours, on both sides; by default the largest one.
        title: instead of what was measured.
    """
    table = found.recovered.numpy()
    words = "share of the effect"
    if not np.isfinite(table).any():
        table, words = found.change.numpy(), f"change of the {found.measured}"
    kind = f"paths to {found.paths}" if found.paths else f"{found.at} patched into the {found.into} run"
    heading = title or f"{kind}: {found.measured}" + (f"; no shares: {found.doubt}" if found.doubt else "")
    rows = shortest(found.names)
    across = [str(number) for number in range(table.shape[1])] if found.at == "heads" else None
    if found.positions is None:
        return heat_map(
            table if table.ndim == 2 else table[:, None],
            rows,
            across or ["all"],
            words,
            heading,
            width=width,
            largest=largest,
            below="head" if across else "positions",
        )
    tokens = found.tokens or []
    labels = [tokens[at] if at < len(tokens) else str(at) for at in found.positions]
    if table.ndim == 2:
        return heat_map(table, rows, labels, words, heading, width=width, largest=largest, below="position")
    return heat_maps(list(table), rows, across or [], labels, words, heading, width=width, largest=largest)


def plot_lens(
    found: LogitLens, *, positions: Sequence[int] | None = None, width: float | None = None, title: str | None = None
) -> Figure:
    """The most likely answer after each layer (rows, the last on top) at each position, shaded by its probability."""
    count = found.logits.shape[1]
    shown = list(range(count)) if positions is None else [at % count for at in positions]
    shares, ids = found.probabilities[:, shown].max(-1)
    texts = [[found.words(token) for token in row] for row in ids.flip(0).tolist()]
    labels = found.tokens or [str(at) for at in range(count)]
    columns = [labels[at] if at < len(labels) else str(at) for at in shown]
    before = int(found.names[0] == BEFORE)
    return heat_map(
        shares.flip(0).numpy(),
        [*found.names[:before], *shortest(found.names[before:])][::-1],
        columns,
        "probability",
        title or "what each layer would say",
        width=width or (TWO_COLUMNS if len(shown) > 3 else ONE_COLUMN),
        largest=1.0,
        below="position",
        texts=texts,
        least=0.0,
    )


def plot_contributions(found: Contributions, *, width: float | None = None, title: str | None = None) -> Figure:
    """What each head wrote into the answer; in further columns what its layer wrote beside its heads."""
    table = found.heads.numpy()
    rows = shortest(found.sites)
    beside_heads = np.full((len(found.sites), 1), np.nan)
    used = set()
    for name, value in found.others.items():
        place = name.removesuffix(", rest").partition("#")[0]
        last = [at for at, site in enumerate(found.sites) if site.startswith(f"{place}.") and at not in used]
        if name.endswith(", rest") and last:
            used.add(last[-1])
            beside_heads[last[-1], 0] = value
    heading = title or f"{found.measured} = {found.logit:.3g}"
    outside = ", ".join(
        f"{name} {_minus(f'{value:+.2g}')}"
        for name, value in {**_outside(found), "bias": found.bias, "gap": found.gap}.items()
    )
    columns = [*(str(head) for head in range(table.shape[1])), "rest"]
    return heat_map(
        np.concatenate([table, beside_heads], 1),
        rows,
        columns,
        "written into the logit",
        heading,
        width=width,
        below=f"head\n{outside}",
        largest=float(np.nanmax(np.abs(table), initial=0.0)) or None,
    )


def _outside(found: Contributions) -> dict[str, float]:
    return {name: value for name, value in found.others.items() if not name.endswith(", rest")}


def heat_map(
    table: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    words: str,
    title: str,
    *,
    width: float | None = None,
    largest: float | None = None,
    below: str = "",
    texts: Sequence[Sequence[str]] | None = None,
    least: float | None = None,
) -> Figure:
    """One map of effects. Cells that are wide enough hold their number, or the text given for them.

    `least`: the number of the first colour, for numbers of one sign.
    """
    inches = None if width is None else finite_number("width", width, above=0)
    letters = max((min(len(label), MOST_LETTERS) for label in rows), default=1)
    beside = 0.07 * letters + 0.9  # labels and colour bar
    figure_width = inches or float(np.clip(len(columns) * (CELL + 0.06) + beside, ONE_COLUMN, TWO_COLUMNS))
    cell = (figure_width - beside) / max(1, len(columns))
    high = min(max(cell, 0.14), 0.3)
    with panels.looks():
        figure, (frame,) = panels.frames(1, 1, figure_width, high * len(rows) + 1.2)
        shades = _shades([table], largest) if least is None else Normalize(least, largest)
        drawn = _shaded(frame, table, shades, high / cell)
        panels.side(
            frame, "y", [readable(row, MOST_LETTERS) for row in rows], len(rows), high * len(rows), MOST_LETTERS
        )
        panels.side(frame, "x", columns, len(columns), cell * len(columns))
        if texts is not None or cell >= CELL:
            _numbers(frame, table, shades, cell, texts)
        frame.set_title(wrapped(title, figure_width - 0.3, 7))
        frame.set_xlabel(below)
        _bar(figure, drawn, [frame], words)
        return panels.trimmed(figure)


def heat_maps(
    tables: Sequence[Floats],
    titles: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    words: str,
    title: str,
    *,
    width: float | None = None,
    largest: float | None = None,
) -> Figure:
    """A map for each site, heads × positions, on one scale."""
    figure_width = (None if width is None else finite_number("width", width, above=0)) or TWO_COLUMNS
    beside = min(PANELS, len(tables))
    down = -(-len(tables) // beside)
    panel = figure_width * 0.86 / beside
    high = panel * min(1.2, max(0.35, len(rows) / max(1, len(columns))))
    with panels.looks():
        figure, frames = panels.frames(down, beside, figure_width, down * (high + 0.3) + 1.2)
        shades = _shades(tables, largest)
        for number, frame in enumerate(frames):
            if number >= len(tables):
                frame.set_axis_off()
                continue
            drawn = _shaded(frame, tables[number], shades, high / len(rows) / (panel / len(columns)))
            frame.set_title(readable(titles[number], MOST_LETTERS))
            if number + beside >= len(tables):
                panels.side(frame, "x", columns, len(columns), panel)
            else:
                panels.unmarked(frame, "x")
            if number % beside == 0:
                panels.side(frame, "y", rows, len(rows), high)
                frame.set_ylabel("head")
            else:
                panels.unmarked(frame, "y")
        figure.suptitle(wrapped(title, figure_width - 0.2, 7.5), fontsize=7.5)
        _bar(figure, drawn, frames, words)
        return panels.trimmed(figure)


def _shades(tables: Sequence[Floats], largest: float | None) -> Normalize:
    most = None if largest is None else finite_number("largest", largest, above=0)
    finite = [np.abs(table[np.isfinite(table)]) for table in tables]
    most = most or max((float(numbers.max(initial=0.0)) for numbers in finite), default=0.0) or 1.0
    return Normalize(-most, most)


def _shaded(frame: Axes, table: Floats, shades: Normalize, aspect: float) -> AxesImage:
    cells = np.ma.masked_invalid(table) if table.size else np.ma.masked_all((1, 1))
    return frame.imshow(
        cells, cmap=ramp() if shades.vmin == 0 else diverging(), norm=shades, interpolation="none", aspect=aspect
    )


def _short(value: float) -> str:
    """A number of three or four characters."""
    text = f"{value:.2f}" if abs(value) < 9.995 else f"{value:.0f}"
    return "0" if float(text) == 0 else _minus(text.replace("0.", ".", 1))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def wrapped(text: str, inches: float, size: float) -> str:
    """A title broken between words, at `size` points."""
    shown = " ".join(readable(word, max(1, len(word))) for word in text.split())
    return "\n".join(textwrap.wrap(shown, max(12, int(inches * 72 / (WIDE * size)))))


def _numbers(frame: Axes, table: Floats, shades: Normalize, cell: float, texts: Sequence[Sequence[str]] | None) -> None:
    """Numbers or texts inside the cells, dark on light and light on dark."""
    room = max(3, int(cell * 72 / 3.3))
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            if not np.isfinite(value):
                continue
            text = _short(float(value)) if texts is None else readable(texts[row][column], room)
            place = float(shades(value))
            dark = place > 0.5 if shades.vmin == 0 else abs(place - 0.5) > 0.33
            frame.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=5.2,
                parse_math=False,
                color="white" if dark else panels.INK,
            )


def _bar(figure: Figure, drawn: AxesImage, beside: Sequence[Axes], words: str) -> None:
    """The colour bar, with both signs."""
    colourbar = figure.colorbar(drawn, ax=list(beside), fraction=0.05, aspect=figure.get_figheight() / 0.1, pad=0.01)
    signed = drawn.norm.vmin != 0
    colourbar.ax.yaxis.set_major_locator(MaxNLocator(5, symmetric=signed))
    colourbar.ax.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: _minus(f"{value:+.2g}") if value and signed else f"{value:.2g}")
    )
    colourbar.set_label(words, fontsize=6.5)
    colourbar.outline.set_linewidth(0.4)
