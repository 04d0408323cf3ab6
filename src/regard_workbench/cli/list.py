"""`regard list`: what exists, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from regard_workbench.cli.common.inventory import COST_LETTERS, KINDS, MECHANISMS, Row, rows_of

if TYPE_CHECKING:
    from jsonargparse import Namespace
    from rich.console import RenderableType

    from regard_workbench.cli.common.parser import Parser

SUMMARY = "List the mechanisms, the models and tasks that use them, or the values they are made of."
EXAMPLES = ("regard list", "regard list models --json")

WIDE = 110  # columns from which on a summary fits beside the other columns
COLUMNS = ("name", "causal", "time", "memory")
CAUSAL = "Causal: always (yes), never (no) or with causal=True (option)."


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
    parser.add_argument("kind", nargs="?", default=KINDS[0], choices=list(KINDS), metavar="KIND", help=kinds)
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")


def run(options: Namespace) -> int:
    """Print the table or the JSON."""
    from regard_workbench.cli.common.console import console, put

    rows = rows_of(options.kind)
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return 0
    out = console()
    if options.kind == MECHANISMS:
        put(out, *_grouped(rows, out.width))
    else:
        put(out, *_plain(rows))
    return 0


def _grouped(rows: list[Row], width: int) -> list[RenderableType]:
    """Mechanisms under the headings of their families; on a narrow page the summary stands below the name."""
    from rich.padding import Padding
    from rich.text import Text

    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in COLUMNS}
    blocks: list[RenderableType] = [_line({name: name for name in COLUMNS}, widths, width, head=True)]
    for family in dict.fromkeys(row["family"] for row in rows):
        blocks += [Text(""), Text(family, style="bold underline")]
        for row in rows:
            if row["family"] == family:
                blocks.append(_line(row, widths, width))
                if width < WIDE:
                    blocks.append(Padding(Text(_summary(row), style="dim"), (0, 0, 0, 4)))
    hint = Text.assemble("Explain one: ", ("regard show NAME", "bold"), ", for instance regard show local-p")
    return [*blocks, Text(""), Text(f"{COST_LETTERS}. {CAUSAL}", style="dim"), hint]


def _summary(row: Row) -> str:
    also = f" Also called {' and '.join(row['aliases'])}." if row["aliases"] else ""
    return str(row["summary"]) + also


def _line(row: Row, widths: dict[str, int], width: int, head: bool = False) -> RenderableType:
    from rich.table import Table

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


def result(row: Row) -> str:
    """What a task's default reaches without files, in one line."""
    scores = ", ".join(f"{name} {bound}" for name, bound in row["reaches"].items())
    usual = f"{row['model']} in {row['steps']:,} steps"
    return f"reaches {scores} by {usual}" if scores else f"{usual} by default"


def _plain(rows: list[Row]) -> list[RenderableType]:
    """Name and summary; of models what they give, of tasks what they ask for, on a second line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for row in rows:
        more = f"gives {', '.join(row['gives'])}" if "gives" in row else ""
        if "answers" in row:
            more = f"asks for {' or '.join(row['answers'])}; decided by {row['metric']}\n{result(row)}"
        described = Text.assemble(row["summary"], "\n", (more, "dim")) if more else Text(row["summary"])
        table.add_row(row["name"], described)
    kind, name = rows[0]["kind"], rows[0]["name"]
    example = f", for instance regard show {kind}.{name}"
    return [table, Text(""), Text.assemble("Explain one: ", (f"regard show {kind}.NAME", "bold"), example)]
