"""`regard bench`: the promised numbers, each measured beside its peer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from regard.errors import BadValue

if TYPE_CHECKING:
    from rich.console import Console

    from regard.benchmarks.case import Case
    from regard.cli.parser import Parser

SUMMARY = "Measure the promised numbers side by side with their peers."
EXAMPLES = (
    "regard bench --device cpu",
    "regard bench --only window,additive-time --json > window.json",
)

TABLE_WIDTH = 150  # when stdout is not a terminal


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    devices = "where to measure; auto takes cuda when there is one. Bars are judged on the cpu only"
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help=devices)
    names = "cases or families to run, joined by commas; see --list"
    parser.add_argument("--only", type=str, metavar="NAME", help=names)
    parser.add_argument("--list", action="store_true", help="show the cases and their bars, measure nothing")
    parser.add_argument("--quick", action="store_true", help="few repeats: a first look, not for the record")
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout instead of a table")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown, for a document")


def run(options: Namespace) -> int:
    """Measure the chosen cases; a missed bar is a result, so it does not change the exit code."""
    from rich.console import Console

    from regard.benchmarks.case import Setting, select
    from regard.benchmarks.run import footer, markdown, table
    from regard.benchmarks.run import run as measure

    cases = select(options.only)
    if options.list:
        return _list(cases, options.json)

    setting = Setting(device=_device(options.device), quick=options.quick)
    progress = Console(stderr=True)
    with progress.status("starting") as status:

        def announce(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                print(text, file=sys.stderr)

        rows = measure(cases, setting, announce)

    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif options.markdown:
        print(markdown(rows))
    else:
        console = _wide_console()
        console.print(table(rows))
        console.print(footer(rows), highlight=False)
    return 0


def _list(cases: list[Case], as_json: bool) -> int:
    entries = [
        {"name": c.name, "work": c.work, "peer": c.peer, "relation": "<=" if c.at_most else ">=", "bar": c.bar,
         "unit": c.unit}
        for c in cases
    ]  # fmt: skip
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return 0
    from rich import box
    from rich.table import Table

    shown = Table("case", "work", "against", "bar", box=box.SIMPLE_HEAD, pad_edge=False)
    for case in cases:
        shown.add_row(
            case.name, case.work, case.peer, f"{'≤' if case.at_most else '≥'} {case.bar:g} {case.unit}"
        )
    _wide_console().print(shown)
    return 0


def _device(asked: str) -> str:
    import torch

    available = torch.cuda.is_available()
    if asked == "auto":
        return "cuda" if available else "cpu"
    if asked == "cuda" and not available:
        raise BadValue("--device: cuda was asked for, but torch sees no CUDA device here; try --device cpu")
    return asked


def _wide_console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)
