"""Attention maps for papers and for a quick look: heads as small multiples on one colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from regard.errors import BadValue, unknown_name
from regard.observation import panels
from regard.observation.analysis.sites import Rows, SeenLike, SiteLike, at, chosen
from regard.observation.colours import norm, on_scale, ramp
from regard.observation.figure_text import lines_of, readable
from regard.observation.panels import Floats
from regard.support.arguments import finite_number, whole_number

ONE_COLUMN, TWO_COLUMNS = 3.35, 6.9  # inches: the widths of a paper's column and of its page
FINE = 512  # cells along a side: a longer map shows the largest weight of each cell
THUMB = 96  # the same in the overview of all heads
LONGEST = 22  # characters of a site's name beside its row
EXACT = 1 << 26  # weights of a figure up to which every row is computed


def plot(
    seen: SeenLike | SiteLike,
    site: str | None = None,
    heads: Rows = None,
    tokens: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    width: float | None = None,
    scale: str = "root",
    largest: float | None = None,
    columns: int | None = None,
    call: int | None = -1,
    batch: int = 0,
) -> Figure:
    """A figure of one site's heads, or, without a site, of all heads of all sites (a row for each site).

    Args:
        seen: what was observed, or one site of it.
        site: a name of `seen.names()`.
        heads: head numbers from 0; all by default.
        tokens: labels of the keys, and of the queries in self-attention. Any text; it is never interpreted.
        targets: labels of the queries, where they differ.
        width: inches; `ONE_COLUMN` for a single head, else `TWO_COLUMNS`.
        scale: the colour scale: `root`, `linear` or `log`.
        largest: the weight of the last colour; by default the largest weight shown.
        columns: maps in a row; chosen by their shape by default.
        call: which call of the sites; None joins a prompt and its decoding steps to one map.
        batch: which example.
    """
    most = None if largest is None else finite_number("largest", largest, above=0)
    inches = None if width is None else finite_number("width", width, above=0)
    beside = None if columns is None else whole_number("columns", columns, least=1)
    with panels.looks():
        if site is None and isinstance(seen, SeenLike):
            return _overview(seen, heads, inches, scale, most, call, batch)
        chosen_site = _site(seen, site) if isinstance(seen, SeenLike) else seen
        return _heads_of(chosen_site, heads, (tokens, targets), inches, scale, most, beside, call, batch)


def image(
    site: SiteLike,
    head: int | None = None,
    size: int = 512,
    *,
    scale: str = "root",
    call: int | None = -1,
    batch: int = 0,
) -> Image.Image:
    """One head of a site as an image whose longer side is `size` pixels, or all heads in a grid.

    A pixel is one weight, or the largest of several.
    """
    size = whole_number("size", size, least=1)
    site, which = at(site, call)
    _, count, queries, keys = site.shape(which)
    shown = _numbers(head, count)
    across = max(1, int(np.ceil(np.sqrt(len(shown)))))
    down = max(1, -(-len(shown) // across))
    gap = 0 if len(shown) == 1 else max(1, size // 128)
    side = max(1, (size - gap * (across - 1)) // across)
    tall, wide = (max(1, round(side * length / max(queries, keys, 1))) for length in (queries, keys))
    tables, _ = _tables(site, shown, which, batch, side)
    shades = norm(scale, _most(tables))
    canvas = Image.new("RGB", (across * wide + gap * (across - 1), down * tall + gap * (down - 1)), "white")
    for number, table in enumerate(tables):
        if table.size:
            colours = (ramp()(shades(on_scale(table, shades)))[..., :3] * 255).round().astype(np.uint8)
            corner = (number % across * (wide + gap), number // across * (tall + gap))
            canvas.paste(Image.fromarray(colours).resize((wide, tall), Image.Resampling.NEAREST), corner)
    return canvas


def _site(seen: SeenLike, name: str | None) -> SiteLike:
    if name not in seen.names():
        raise unknown_name("site", name, seen.names())
    return seen[str(name)]


def _numbers(heads: Any, count: int) -> list[int]:
    """Heads by number: one, several, or all."""
    if heads is not None and not isinstance(heads, (slice, torch.Tensor, Sequence)):
        heads = [whole_number("heads", heads)]
    try:
        return [int(head) for head in chosen(heads, count)]
    except BadValue:
        raise BadValue(f"heads: expected numbers below {count}, got {heads!r}.") from None


def _tables(
    site: SiteLike, heads: list[int], call: int, batch: int, finest: int, exact: int = EXACT
) -> tuple[list[Floats], str]:
    """The maps of heads, reduced to at most `finest` cells a side, and what a cell is in words."""
    _, _, queries, keys = site.shape(call)
    if not heads or not queries or not keys:
        return [np.zeros((queries, keys), np.float32) for _ in heads], "weight"
    if max(queries, keys) <= finest or not hasattr(site, "pooled"):
        weights = site.weights(None, heads, call)[batch].detach().float().cpu()
        return list(weights.numpy()), "weight"
    sampled = len(heads) * queries * keys > exact
    pooled = site.pooled(min(finest, queries), min(finest, keys), heads, call, batch, sampled)
    words = "largest weight of a cell" + (", from sampled rows" if sampled else "")
    return list(pooled.float().cpu().numpy()), words


def _most(tables: Sequence[Floats]) -> float:
    finite = (table[np.isfinite(table)] for table in tables)
    return max((float(numbers.max(initial=0.0)) for numbers in finite), default=0.0)


def _heads_of(
    site: SiteLike,
    heads: Rows,
    labels: tuple[Sequence[str] | None, Sequence[str] | None],
    width: float | None,
    scale: str,
    largest: float | None,
    columns: int | None,
    call: int | None,
    batch: int,
) -> Figure:
    """The heads of one site, with labels on the outer sides."""
    site, which = at(site, call)
    _, count, queries, keys = site.shape(which)
    shown = _numbers(heads, count)
    across, down = _labels("tokens", labels[0], keys), _labels("targets", labels[1], queries)
    if down is None and across is not None and queries <= keys:
        down = across[keys - queries :]  # the last positions, as in a decoding step
    tables, words = _tables(site, shown, which, batch, FINE)
    form = panels.ratio(queries, keys)
    beside = min(columns or (4 if form > 0.4 else 2), max(1, len(shown)))
    figure_width = width or (ONE_COLUMN if len(shown) == 1 else TWO_COLUMNS)
    panel = figure_width * 0.84 / beside
    rows = max(1, -(-len(shown) // beside))
    figure, frames = panels.frames(rows, beside, figure_width, rows * (panel * form + 0.25) + 1.2)
    shades = norm(scale, largest or _most(tables))
    drawn: AxesImage | None = None
    for number, frame in enumerate(frames):
        if number >= len(shown):
            frame.set_axis_off()
            continue
        drawn = panels.shade(frame, tables[number], shades, (queries, keys))
        title = f"head {shown[number]}"
        frame.set_title(title if len(shown) > 1 else lines_of(f"{site.name}, {title}", panel, 7))
        if number + beside >= len(shown):
            panels.side(frame, "x", across, keys, panel)
        else:
            panels.unmarked(frame, "x")
        if number % beside == 0:
            panels.side(frame, "y", down, queries, panel * form)
        else:
            panels.unmarked(frame, "y")
    if len(shown) > 1:
        figure.supxlabel("attended to", fontsize=7)
        figure.supylabel("attends", fontsize=7)
        figure.suptitle(lines_of(site.name, figure_width - 0.2, 7.5), fontsize=7.5)
    else:
        frames[0].set(xlabel="attended to", ylabel="attends")
    if drawn is not None:
        panels.bar(figure, drawn, frames, scale, words)
    return panels.trimmed(figure)


def _overview(
    seen: SeenLike, heads: Rows, width: float | None, scale: str, largest: float | None, call: int | None, batch: int
) -> Figure:
    """All heads: a row for each site."""
    names = seen.names()
    if not names:
        raise BadValue("seen: expected at least one site, got none. Call the model inside the observe block.")
    sites = [at(seen[name], call)[0] for name in names]
    which = -1 if call is None else call
    shown = [_numbers(heads, site.shape(which)[1]) for site in sites]
    read = [
        _tables(site, picked, which, batch, THUMB, EXACT // len(sites))
        for site, picked in zip(sites, shown, strict=True)
    ]
    beside = max(1, *map(len, shown))
    figure_width = width or TWO_COLUMNS
    forms = [panels.ratio(*site.shape(which)[2:]) for site in sites]
    figure, (frame,) = panels.frames(1, 1, figure_width, figure_width * (sum(forms) + 1) / beside + 0.6)
    shades = norm(scale, largest or _most([table for tables, _ in read for table in tables]))
    # One axes for all maps: a hundred axes would take seconds to lay out.
    drawn = panels.mosaic(frame, [tables for tables, _ in read], forms, beside, shades)
    longest = max(shown, key=len)
    panels.named_outside(frame, [str(head) for head in longest], shortest(names))
    frame.set_title("head")
    if drawn is not None:
        panels.bar(figure, drawn, [frame], scale, max((words for _, words in read), key=len))
    return panels.trimmed(figure)


def shortest(names: Sequence[str]) -> list[str]:
    """Names without their common prefix and suffix: `encoder.layer.0.attention.self` → `layer.0`."""
    paths = [name.split(".") for name in names]
    if len(paths) > 1:
        while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
            paths = [path[:-1] for path in paths]
        while all(len(path) > 2 for path in paths) and len({path[0] for path in paths}) == 1:
            paths = [path[1:] for path in paths]
    readable_names = [readable(name, max(len(name), 1)) for name in (".".join(path) for path in paths)]
    # The number is at the end.
    return [name if len(name) <= LONGEST else "…" + name[1 - LONGEST :] for name in readable_names]


def _labels(argument: str, given: Sequence[str] | None, count: int) -> list[str] | None:
    if given is None:
        return None
    if len(given) != count:
        raise BadValue(f"{argument}: expected one for each of {count} positions, got {len(given)}.")
    return [str(piece) for piece in given]
