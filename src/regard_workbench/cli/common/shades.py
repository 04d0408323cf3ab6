"""A heat map in characters: two columns and one line for each number, so that cells are about square."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

Array = Sequence[Sequence[float]]  # queries × keys

NOTHING = "  "  # exactly zero: hidden, or not chosen
SHADES = ((0.05, "· "), (0.25, "░░"), (0.5, "▒▒"), (0.75, "▓▓"), (math.inf, "██"))  # up to this share of the largest
BARS = "▁▂▃▄▅▆▇█"
TICKS = 4  # every fourth position is numbered
MARGIN = 3  # columns left of the map, for the numbers of the queries


def cell(value: float, largest: float, lifted: bool = False) -> str:
    """Two characters for a number, shaded by its share of the largest; `lifted`: by the square root of the share."""
    if value <= 0 or largest <= 0:
        return NOTHING
    share = value / largest
    return next(shade for bound, shade in SHADES if (math.sqrt(share) if lifted else share) < bound)


def key(largest: float, lifted: bool = False, unit: str = "") -> list[str]:
    """One line for each shade, the darkest first, with the smallest number it is used for."""
    bounds = [0.0, *(bound for bound, _ in SHADES[:-1])]
    lines = []
    for low, (_, shade) in zip(bounds, SHADES, strict=True):
        number = largest * (low**2 if lifted else low)
        lines.append(f"{shade}  from {number:.2g}{unit}" if low else f"{shade}  above 0")
    return lines[::-1]


def key_between(least: float, largest: float) -> list[str]:
    """The same for numbers of both signs, drawn as their distance from the smallest."""
    bounds = [0.0, *(bound for bound, _ in SHADES[:-1])]
    lines = [
        f"{shade}  from {round(least + low * (largest - least), 2) + 0.0:+.2f}"
        for low, (_, shade) in zip(bounds, SHADES, strict=True)
    ]
    return [*lines[::-1], f"{NOTHING}  the smallest, {least:+.2f}"]


def drawn(rows: Array, lifted: bool = False) -> list[str]:
    """The lines of a map (q, k), framed, with key numbers above and query numbers on the left."""
    largest = max((max(row, default=0.0) for row in rows), default=0.0)
    columns = len(rows[0]) if rows else 0
    numbers = "".join(str(j).ljust(2 * TICKS) for j in range(0, columns, TICKS))
    edge = " " * MARGIN
    lines = [edge + " " + numbers[: 2 * columns], edge + "┌" + "──" * columns + "┐"]
    for i, row in enumerate(rows):
        number = str(i) if i % TICKS == 0 else ""
        cells = "".join(cell(value, largest, lifted) for value in row)
        lines.append(f"{number:>{MARGIN - 1}} │{cells}│")
    return [*lines, edge + "└" + "──" * columns + "┘"]


def bars(row: Sequence[float]) -> str:
    """One row as a line of bars; blank for exactly zero."""
    largest = max(row, default=0.0)
    if largest <= 0:
        return " " * len(row)
    return "".join(BARS[min(int(value / largest * len(BARS)), len(BARS) - 1)] if value > 0 else " " for value in row)


def beside(blocks: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Join blocks of lines side by side."""
    widths = [max((len(line) for line in block), default=0) for block in blocks]
    joined = zip_longest(*blocks, fillvalue="")
    return [
        (" " * gap).join(line.ljust(width) for line, width in zip(lines, widths, strict=True)).rstrip()
        for lines in joined
    ]
