"""The picture of a mechanism's weights as SVG that takes its colour from the page: light, dark and print."""

from __future__ import annotations

from html import escape

CELL = 12
GAP = 26  # between two heads
MARGIN = 16  # for the numbers of rows and columns


def svg(heads: list[list[list[float]]], rows: str, columns: str) -> str:
    """Heads side by side, each as cells of query × key; a cell is as opaque as its share of the largest one."""
    height, width = len(heads[0]), len(heads[0][0])
    across = MARGIN + CELL * width
    total = len(heads) * across + (len(heads) - 1) * GAP
    parts = [_head(head, number * (across + GAP), len(heads) > 1, number) for number, head in enumerate(heads)]
    words = f"Row i is {rows}, column j {columns}; a dark cell is a large number."
    box = f"0 0 {total + 1} {2 * MARGIN + CELL * height}"
    return (
        f'<svg class="weights" xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" '
        f'aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )


def _head(head: list[list[float]], left: int, titled: bool, number: int) -> str:
    height, width = len(head), len(head[0])
    top, left = 2 * MARGIN - 2, left + MARGIN
    largest = max(max(row) for row in head) or 1.0
    cells = [
        f'<rect x="{left + CELL * j}" y="{top + CELL * i}" width="{CELL}" height="{CELL}" '
        f'fill-opacity="{max(0.02, value / largest):.3g}"/>'
        for i, row in enumerate(head)
        for j, value in enumerate(row)
        if value > 0
    ]
    frame = f'<rect class="frame" x="{left}" y="{top}" width="{CELL * width}" height="{CELL * height}" fill="none"/>'
    marks = [
        f'<text x="{left + CELL * j + CELL / 2}" y="{top - 4}" text-anchor="middle">{j}</text>'
        for j in (0, width // 2, width - 1)
    ]
    marks += [
        f'<text x="{left - 3}" y="{top + CELL * i + CELL - 3}" text-anchor="end">{i}</text>'
        for i in (0, height // 2, height - 1)
    ]
    title = f'<text x="{left}" y="10">head {number}</text>' if titled else ""
    return "".join([title, *marks, *cells, frame])
