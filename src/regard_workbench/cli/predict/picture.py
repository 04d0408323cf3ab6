"""An alignment drawn in the terminal: one line for each output token, two columns for each input token."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from regard_workbench.cli.common import shades
from regard_workbench.cli.common.terminal import visible

LONGEST_HEAD = 12  # characters of an input token, written vertically above its column
LONGEST_LABEL = 16
CUT = "…"
FAINT = 0.02  # of the largest weight: smaller ones are left blank, since a softmax is nowhere zero
LEAST_COLUMNS = 8  # input tokens in a drawing, however narrow the terminal


def drawn(weights: shades.Array, written: Sequence[str], read: Sequence[str], width: int) -> list[str]:
    """The lines of the drawing; on a narrow terminal it continues below with the next input tokens."""
    labels = [_label(piece) for piece in written]
    margin = max(map(cell_len, labels), default=0)
    room = max(LEAST_COLUMNS, (width - margin - 3) // 2)
    largest = max((max(row, default=0.0) for row in weights), default=0.0)
    lines: list[str] = []
    for begin in range(0, len(read), room):
        span = slice(begin, begin + room)
        if lines:
            lines.append("")
        lines += _block([row[span] for row in weights], labels, read[span], margin, largest)
    return lines


def legend(weights: shades.Array) -> str:
    """The smallest weight of each shade, on one line."""
    largest = max((max(row, default=0.0) for row in weights), default=0.0)
    *fuller, faintest = (" ".join(line.split()) for line in shades.key(largest))
    return ", ".join([*fuller, f"{faintest.split()[0]} from {FAINT * largest:.2g}"])


def _block(weights: shades.Array, labels: Sequence[str], read: Sequence[str], margin: int, largest: float) -> list[str]:
    edge = " " * (margin + 1)
    frame = "──" * len(read)
    lines = [f"{edge} {line}".rstrip() for line in _heads(read)]
    lines.append(f"{edge}┌{frame}┐")
    for label, row in zip(labels, weights, strict=True):
        cells = "".join(shades.cell(value if value >= FAINT * largest else 0.0, largest) for value in row)
        lines.append(f"{' ' * (margin - cell_len(label))}{label} │{cells}│")
    return [*lines, f"{edge}└{frame}┘"]


def _heads(pieces: Sequence[str]) -> list[str]:
    """The input tokens above their columns, written vertically and aligned at the bottom."""
    columns = [_letters(piece, LONGEST_HEAD) for piece in pieces]
    height = max(map(len, columns), default=0)
    columns = [[" "] * (height - len(letters)) + letters for letters in columns]
    return ["".join(letter + " " * (2 - cell_len(letter)) for letter in line) for line in zip(*columns, strict=True)]


def _letters(piece: str, most: int) -> list[str]:
    """The characters of a token, each one or two columns wide."""
    letters = [visible(letter) for letter in piece]
    return letters if len(letters) <= most else [*letters[: most - 1], CUT]


def _label(piece: str) -> str:
    text = "".join(_letters(piece, LONGEST_LABEL))
    return "␣" if text == " " else text
