"""Rows as CSV, for files and for the terminal.

Cells are quoted where they have to be. A text that a spreadsheet would run as a formula gets a leading apostrophe, as
in the tables that the page saves (`toCSV` in viewer/page/saving.js).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """One line for each row; None is an empty cell.

    >>> csv_text([["time", "temp, °C", "=1+1"], ["2026-07-01", "-3.5", 2]])
    'time,"temp, °C",\\'=1+1\\n2026-07-01,-3.5,2\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def _cell(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    formula = _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    lines = cell.replace("\r\n", "\n").replace("\r", "\n")  # Python 3.11 and 3.12 quote "\n" alone
    return f"'{lines}" if formula else lines
