"""The tables of `regard list`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.cli.pages import catalogue, docstring
from regard.cli.pages.page import LETTERS

Row = dict[str, Any]

WIDE = 110  # from here on a summary has room beside the other columns
COLUMNS = ("name", "causal", "time", "memory")
CAUSAL = "Causal: always (yes), never (no) or with causal=True (option)."


def mechanisms() -> list[Row]:
    """One row for each mechanism, in reading order."""
    return [
        {
            "name": entry.name,
            "aliases": list(entry.aliases),
            "family": catalogue.family(entry),
            "summary": docstring.read(entry.layer).summary,
            "causal": entry.causal,
            "time": entry.time,
            "memory": entry.memory,
        }
        for entry in catalogue.mechanisms()
    ]


def pieces(kind: str) -> list[Row]:
    """One row for each piece of the core of that kind."""
    return [
        {"kind": item.kind, "name": item.name, "call": item.call, "summary": item.summary}
        for item in catalogue.KINDS[kind]()
    ]


def grouped(rows: list[Row], width: int) -> list[RenderableType]:
    """Mechanisms under the headings of their families; on a narrow page the summary stands below the name."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in COLUMNS}
    parts: list[RenderableType] = [_line({name: name for name in COLUMNS}, widths, width, head=True)]
    for family in dict.fromkeys(row["family"] for row in rows):
        parts += [Text(""), Text(family, style="bold underline")]
        for row in rows:
            if row["family"] == family:
                parts.append(_line(row, widths, width))
                if width < WIDE:
                    parts.append(Padding(Text(_summary(row), style="dim"), (0, 0, 0, 4)))
    hint = Text.assemble("Explain one: ", ("regard show NAME", "bold"), ", for instance regard show local-p")
    return [*parts, Text(""), Text(f"{LETTERS}. {CAUSAL}", style="dim"), hint]


def _summary(row: Row) -> str:
    also = f" Also called {' and '.join(row['aliases'])}." if row["aliases"] else ""
    return str(row["summary"]) + also


def _line(row: Row, widths: dict[str, int], width: int, head: bool = False) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), width=width)
    style = "dim" if head else None
    table.add_column(width=widths["name"] + 2, no_wrap=True, style=style or "bold")
    cells = [row["name"] if head else f"  {row['name']}"]
    if width >= WIDE:
        table.add_column(ratio=1, style=style)
        cells.append("what it does" if head else _summary(row))
    for name in COLUMNS[1:]:
        table.add_column(width=widths[name], no_wrap=True, style=style)
        cells.append(row[name])
    if width < WIDE:
        table.add_column(ratio=1)
        cells.append("")
    table.add_row(*cells)
    return table


def plain(rows: list[Row]) -> list[RenderableType]:
    """Pieces of one kind: name and summary."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for row in rows:
        table.add_row(row["name"], row["summary"])
    kind, name = rows[0]["kind"], rows[0]["name"]
    example = f", for instance regard show {kind}.{name}"
    hint = Text.assemble("Explain one: ", (f"regard show {kind}.NAME", "bold"), example)
    return [table, Text(""), hint]
