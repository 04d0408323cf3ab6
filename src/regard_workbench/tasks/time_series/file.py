"""Time series from CSV files: a time column first, numbers after. What is wrong is said with file and line.

pyarrow (the extra `series`) makes reading quick. Where it is missing, or refuses a file, the standard library reads the
same file line by line, and says what is wrong in which line: so what is an error is decided in one place.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import excerpt, read_text, wrong
from regard_workbench.tasks.text.split_words import trimmed

MISSING = ("", "nan", "NaN", "NAN", "na", "NA", "N/A", "n/a", "null", "NULL", "None", "-", "?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
GAPS = ("fill", "join")
HALF = 0.5  # of a step: rows may come so much too early or late and still be neighbours

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class SeriesTable:
    """Columns of numbers at equal steps of time; NaN where a value is missing."""

    names: tuple[str, ...]
    values: Numbers  # (rows, columns)
    times: Numbers  # seconds since 1970, or the numbers of the file
    step: float  # from one row to the next, in the unit of `times`
    dated: bool  # whether times are dates
    notes: tuple[str, ...] = ()  # what was missing and how it was filled


@reads_file
def read_series(path: Path, encoding: str, dates: str | None, gaps: str, other: str) -> SeriesTable:
    """The table of a CSV file; rows that are missing between two times are there, without values.

    dates: how times are written, as `datetime.strptime` takes it; None: ISO 8601, or numbers
    gaps: "fill" puts missing rows in, "join" takes rows as neighbours whatever their times are
    other: how another encoding is named, as the reader can type it
    """
    text = read_text(path, encoding, other)
    if not text.strip():
        raise wrong(path, None, "is empty. Expected a header, and lines of a time and numbers.")
    delimiter = _delimiter(text)
    # Blank lines are no rows to either reader, so both find the same first line.
    line, header = _lines(path, text, delimiter, most=1)[0]
    named = not all(_is_number(cell) for cell in header[1:])
    if len(header) < 2:
        raise wrong(path, line, f"expected a time column and at least one of numbers, got {excerpt(header[0])}.")
    names = [trimmed(cell) for cell in header[1:]] if named else [f"column {n}" for n in range(1, len(header))]
    if len(set(names)) < len(names) or not all(names):
        raise wrong(path, line, f"expected a different name for each column, got {excerpt(', '.join(header))}.")
    lines = _LineNumbers(path, text, delimiter, named)
    stamps, values = _quickly(text, delimiter, named, len(header)) or _line_by_line(path, lines, len(header))
    if not stamps:
        raise wrong(path, line, "a header, but no line after it. Expected lines of a time and numbers.")
    times, dated = _times(path, stamps, dates, lines)
    return _at_equal_steps(path, tuple(names), values, times, dated, gaps, stamps, lines)


def _delimiter(text: str) -> str:
    first = text.lstrip("\n").partition("\n")[0]
    return max(",;\t", key=first.count)


def _lines(path: Path, text: str, delimiter: str, most: int | None = None) -> list[tuple[int, list[str]]]:
    """The cells of each line that holds any, with the number of the line; at most so many lines."""
    rows: list[tuple[int, list[str]]] = []
    last = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if any(trimmed(cell) for cell in cells):
                rows.append((last + 1, cells))
            last = reader.line_num
            if len(rows) == most:
                break
    except csv.Error as error:
        raise wrong(path, reader.line_num, f"not valid CSV: {error}.") from None
    return rows


class _LineNumbers:
    """The line of each row, found when an error needs it."""

    def __init__(self, path: Path, text: str, delimiter: str, named: bool) -> None:
        self._given = (path, text, delimiter, named)

    @cached_property
    def rows(self) -> list[tuple[int, list[str]]]:
        """The cells of each row, with the number of its line."""
        path, text, delimiter, named = self._given
        return _lines(path, text, delimiter)[named:]

    def __getitem__(self, row: int) -> int:
        return self.rows[row][0]


def _is_number(cell: str) -> bool:
    return cell.strip() in MISSING or NUMBER.fullmatch(cell.strip()) is not None


def _quickly(text: str, delimiter: str, named: bool, width: int) -> tuple[list[str], Numbers] | None:
    """Times and numbers by pyarrow; None where it is not installed or the file is not as it should be."""
    try:
        import pyarrow
        from pyarrow import csv as arrow
    except ImportError:
        return None
    if text.startswith("\n"):  # pyarrow would skip a blank line in place of the header
        return None
    columns = [str(number) for number in range(width)]
    try:
        table = arrow.read_csv(
            io.BytesIO(text.encode("utf-8", "surrogatepass")),
            arrow.ReadOptions(column_names=columns, skip_rows=int(named)),
            arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            arrow.ConvertOptions(
                column_types={"0": pyarrow.string(), **dict.fromkeys(columns[1:], pyarrow.float64())},
                null_values=list(MISSING),
                strings_can_be_null=False,
            ),
        )
    except pyarrow.ArrowException:
        return None
    values = np.stack([table[name].to_numpy() for name in columns[1:]], 1)
    stamps: list[str] = table["0"].to_pylist()
    return None if np.isinf(values).any() or not all(map(str.strip, stamps)) else (stamps, values)


def _line_by_line(path: Path, lines: _LineNumbers, width: int) -> tuple[list[str], Numbers]:
    stamps, values = [], []
    for line, cells in lines.rows:
        if len(cells) != width:
            raise wrong(
                path,
                line,
                f"expected {width} columns as in the first line, got {len(cells)}: {excerpt(' | '.join(cells))}. "
                "Complete the line or delete it.",
            )
        row = []
        for number, cell in enumerate(cells[1:], 2):
            plain = cell.strip()
            if plain not in MISSING and not NUMBER.fullmatch(plain):
                hint = " Write decimal points." if re.fullmatch(r"[+-]?\d+,\d+", plain) else ""
                raise wrong(
                    path,
                    line,
                    f"column {number}: expected a number, or nothing where it is missing, got {excerpt(plain)}.{hint}",
                )
            row.append(float("nan") if plain in MISSING else float(plain))
        stamps.append(cells[0])
        values.append(row)
    table = np.array(values, dtype=np.float64).reshape(len(stamps), width - 1)
    if np.isinf(table).any():
        row_number = int(np.isinf(table).any(1).argmax())
        raise wrong(path, lines[row_number], "a number is too large. Expected finite numbers.")
    return stamps, table


def _times(path: Path, stamps: Sequence[str], dates: str | None, lines: _LineNumbers) -> tuple[Numbers, bool]:
    """Each time as a number, and whether times are dates (then in seconds since 1970)."""
    if dates is None and NUMBER.fullmatch(stamps[0].strip()):
        numbers = []
        for row, stamp in enumerate(stamps):
            if not NUMBER.fullmatch(stamp.strip()):
                raise wrong(
                    path, lines[row], f"the time is {excerpt(stamp)}, those before it are numbers. Expected one kind."
                )
            numbers.append(float(stamp))
        return np.array(numbers), False
    return np.array([_seconds(path, row, stamp, dates, lines) for row, stamp in enumerate(stamps)]), True


def _seconds(path: Path, row: int, stamp: str, dates: str | None, lines: _LineNumbers) -> float:
    try:
        plain = stamp.strip()
        date = datetime.fromisoformat(plain) if dates is None else datetime.strptime(plain, dates)
    except ValueError:
        wanted = (
            "a date such as 2016-07-01 00:00:00, or a number. Say how dates are written, for instance "
            'dates="%d.%m.%Y %H:%M"'
            if dates is None
            else f"a date written as dates={dates!r} says"
        )
        raise wrong(path, lines[row], f"expected {wanted}; got {excerpt(stamp)}.") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _at_equal_steps(
    path: Path,
    names: tuple[str, ...],
    values: Numbers,
    times: Numbers,
    dated: bool,
    gaps: str,
    stamps: Sequence[str],
    lines: _LineNumbers,
) -> SeriesTable:
    apart = np.diff(times)
    if (apart <= 0).any():
        row = int(np.argmax(apart <= 0)) + 1
        fault = "comes again" if apart[row - 1] == 0 else f"is before that of line {lines[row - 1]}"
        raise wrong(
            path,
            lines[row],
            f"the time {excerpt(stamps[row])} {fault}. Sort the file by time, and keep one row for each.",
        )
    if len(times) < 2:
        raise wrong(path, lines[0], "a single row. Expected a series.")
    kinds, counts = np.unique(apart, return_counts=True)
    step = float(kinds[np.argmax(counts)])  # the most frequent; of several, the shortest
    notes = []
    if gaps == "fill":
        if (apart < HALF * step).any():
            row = int(np.argmax(apart < HALF * step)) + 1
            raise wrong(
                path,
                lines[row],
                f"the time {excerpt(stamps[row])} comes {apart[row - 1]:g} after the one before it, and most come "
                f"{step:g} apart{' (seconds)' if dated else ''}. Resample the file, or take rows as neighbours "
                "whatever their times are: gaps=join.",
            )
        places = np.concatenate([[0], np.cumsum(np.maximum(1, np.rint(apart / step)))]).astype(np.int64)
        inserted = int(places[-1]) + 1 - len(times)
        if inserted > len(times):
            raise wrong(
                path,
                None,
                f"{inserted:,} rows are missing between {len(times):,}, if one is expected every {step:g}"
                f"{' seconds' if dated else ''}. Take rows as neighbours whatever their times are: gaps=join.",
            )
        if inserted:
            row = int(np.argmax(np.diff(places) > 1)) + 1
            notes.append(f"{inserted:,} rows are missing, the first before line {lines[row]}")
            wide = np.full((int(places[-1]) + 1, values.shape[1]), np.nan)
            wide[places] = values
            between = np.interp(np.arange(len(wide)), places, times)
            values, times = wide, between
    empty = int(np.isnan(values).sum()) - (len(values) - len(stamps)) * values.shape[1]
    if empty:
        notes.append(f"{empty:,} values are missing")
    unseen = [name for name, column in zip(names, values.T, strict=True) if np.isnan(column).all()]
    if unseen:
        raise wrong(path, None, f"column {unseen[0]!r} holds no number. Leave it out with columns=.")
    return SeriesTable(names, values, times, step, dated, tuple(notes))


def written_time(seconds: float, dated: bool) -> str:
    """A time as the file may have it: an ISO date, or a number."""
    if not dated:
        return f"{seconds:g}"
    date = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    return date.isoformat(sep=" ", timespec="seconds" if seconds == int(seconds) else "milliseconds")


def checked_gaps(gaps: str) -> str:
    """What is done about missing rows."""
    if gaps not in GAPS:
        raise BadValue(f"gaps: expected fill or join, got {gaps!r}.")
    return gaps
