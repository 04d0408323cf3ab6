"""Tables of texts with labels: TSV, CSV, JSON lines, plain or .gz, with or without a header."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.json_values import json_object
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.formats.splits import plain_name
from regard_workbench.tasks.text.split_words import trimmed

ENDINGS = (".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".txt")
TEXT = ("text", "sentence", "review", "content", "comment", "document", "tweet", "question", "body", "utterance")
MOST_NAMED = 20  # columns in a message
LABEL = ("label", "class", "sentiment", "target", "category", "polarity", "tag", "intent", "y")


class Row(NamedTuple):
    """A text, its label, and where it stands."""

    text: str
    label: str
    path: Path
    line: int


@dataclass(frozen=True)
class Table:
    """The cells of a file by line; `names` where the columns have any."""

    path: Path
    names: list[str] | None
    rows: list[tuple[int, Sequence[str | None]]]

    @property
    def width(self) -> int:
        """How many columns there are."""
        return len(self.rows[0][1])

    def columns(self) -> str:
        """What the columns are called, for a message."""
        if self.names is None:
            return f"{self.width}, without names"
        more = f" … and {len(self.names) - MOST_NAMED:,} more" if len(self.names) > MOST_NAMED else ""
        return ", ".join(map(excerpt, self.names[:MOST_NAMED])) + more


@dataclass(frozen=True)
class Columns:
    """Where the text and where the label stands: by name, or by number from 0 where there are no names."""

    text: str | int
    label: str | int


@reads_file
def read_table(
    path: Path, encoding: str, text: str | int | None, label: str | int | None, other: str = "latin-1"
) -> Table:
    """The cells of a file. A first line is a header when it holds the names of both columns.

    `other`: how another encoding is named, as `read_text` takes it.
    """
    name = plain_name(path).lower()
    if not name.endswith(ENDINGS) and path.exists():  # one that does not exist is said to be missing below
        raise wrong(path, None, f"expected a file that ends in {', '.join(ENDINGS)} (or that and .gz).")
    lines = read_lines(path, encoding, other)
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return _objects(path, lines)
    rows: list[tuple[int, Sequence[str | None]]] = []
    for line, cells in _comma_separated(path, lines) if name.endswith(".csv") else _tab_separated(lines):
        if rows and len(cells) != len(rows[0][1]):
            raise wrong(
                path,
                line,
                f"expected {len(rows[0][1])} columns as in line {rows[0][0]}, got {len(cells)}: "
                f"{excerpt(' | '.join(cells))}.",
            )
        rows.append((line, list(cells)))
    if not rows:
        raise wrong(path, None, "holds no row: every cell is empty. Expected lines of a text and a label.")
    first = [trimmed(cell) for cell in rows[0][1] if cell is not None]
    if _position(first, text, TEXT) is None or _position(first, label, LABEL) is None:
        return Table(path, None, rows)
    if len(rows) == 1:
        raise wrong(path, 1, "a header, but no line after it. Add lines of text and label.")
    return Table(path, first, rows[1:])


def find_columns(
    table: Table,
    text: str | int | None,
    label: str | int | None,
    typed: Callable[..., str] = lambda **options: " and ".join(options),
) -> Columns:
    """Which columns hold text and label: those given (a name, or a number: the first column is 1), or those found.

    `typed` says options as the reader can type them, as `Task.typed` does.

    Found are usual names, or in a table of two columns the one with fewer different entries as label.
    """
    keys = [_given(table, "text_column", text), _given(table, "label_column", label)]
    for place, usual in enumerate((TEXT, LABEL)):
        if keys[place] is None and table.names is not None:
            position = _position(table.names, None, usual)
            keys[place] = None if position is None else table.names[position]
    if None in keys and table.width == 2:
        if keys == [None, None]:
            variety = [len({cells[column] for _, cells in table.rows}) for column in range(2)]
            labels = 0 if variety[0] < variety[1] else 1
            keys = [_key(table, 1 - labels), _key(table, labels)]
        else:
            settled = 0 if keys[0] is not None else 1
            remaining = 1 - _index(table, keys[settled])
            keys[1 - settled] = _key(table, remaining)
    if keys[0] is None or keys[1] is None:
        raise wrong(
            table.path,
            None,
            "cannot tell which column holds the text and which the label. "
            f"Say which, by name or by number from 1, for instance {typed(text_column=1, label_column=2)}. "
            f"Columns: {table.columns()}.",
        )
    if keys[0] == keys[1]:
        raise BadValue(f"label_column: expected another column than text_column, got {keys[1]!r} for both.")
    return Columns(keys[0], keys[1])


def labelled(table: Table, columns: Columns) -> Iterator[Row]:
    """The texts and labels of a table."""
    text, label = _index(table, columns.text), _index(table, columns.label)
    for line, cells in table.rows:
        for name, position in (("text", text), ("label", label)):
            cell = cells[position]
            if cell is None or not trimmed(cell):
                raise wrong(table.path, line, f"the {name} is {'missing' if cell is None else 'empty'}.")
        yield Row(str(cells[text]), trimmed(str(cells[label])), table.path, line)


def _tab_separated(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        if trimmed(line):
            yield number, line.split("\t")


def _comma_separated(path: Path, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    before = csv.field_size_limit(sys.maxsize >> 33)  # a C long everywhere; the usual limit refuses long texts
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    try:
        last = 0
        for cells in reader:
            if any(trimmed(cell) for cell in cells):
                yield last + 1, cells
            last = reader.line_num
    except csv.Error as error:
        raise wrong(path, reader.line_num, f"not valid CSV: {error}.") from None
    finally:
        csv.field_size_limit(before)


def _objects(path: Path, lines: list[str]) -> Table:
    objects: list[tuple[int, dict[str, object]]] = []
    names: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if not trimmed(line):
            continue
        entry = json_object(path, number, line)
        names.update(dict.fromkeys(entry))
        objects.append((number, entry))
    columns = list(names)
    return Table(path, columns, [(number, _ObjectCells(entry, columns)) for number, entry in objects])


class _ObjectCells(Sequence[str | None]):
    """The cells of an object in the order of the table's columns, which may be far more than the object has."""

    def __init__(self, entry: dict[str, object], columns: list[str]) -> None:
        self._entry, self._columns = entry, columns

    def __len__(self) -> int:
        return len(self._columns)

    @overload
    def __getitem__(self, position: int) -> str | None: ...

    @overload
    def __getitem__(self, position: slice) -> list[str | None]: ...

    def __getitem__(self, position: int | slice) -> str | list[str | None] | None:
        if isinstance(position, slice):
            return [_cell(self._entry.get(name)) for name in self._columns[position]]
        return _cell(self._entry.get(self._columns[position]))


def _cell(value: object) -> str | None:
    if value is None or isinstance(value, (list, dict)):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _position(names: list[str], given: str | int | None, usual: tuple[str, ...]) -> int | None:
    """Where in a header a column stands, None where it does not."""
    if isinstance(given, str) and not given.isdecimal():
        return names.index(given) if given in names else None
    lower = [name.lower() for name in names]
    return next((lower.index(name) for name in usual if name in lower), None)


def _given(table: Table, option: str, given: str | int | None) -> str | int | None:
    if given is None:
        return None
    if isinstance(given, str) and table.names is not None and given in table.names:
        return given
    if isinstance(given, int) or given.isdecimal():
        if not 1 <= int(given) <= table.width:
            raise BadValue(f"{option}: expected a number from 1 to {table.width} for {table.path}, got {given}.")
        return _key(table, int(given) - 1)
    hint = f"Columns: {table.columns()}." if table.names else "The file has no header; give a number."
    raise BadValue(f"{option}: {table.path} has no column {given!r}. {hint}")


def _key(table: Table, position: int) -> str | int:
    return position if table.names is None else table.names[position]


def _index(table: Table, key: str | int | None) -> int:
    """The position of a column in this table, which may have other columns than the one it was found in."""
    if isinstance(key, int) and key < table.width:
        return key
    if table.names is not None and key in table.names:
        if table.names.count(str(key)) > 1:
            raise wrong(table.path, 1, f"two columns are called {excerpt(str(key))}. Give them different names.")
        return table.names.index(str(key))
    raise wrong(table.path, None, f"has no column {key!r}, which the training data have.")
