"""`regard bench`: measure the promised numbers side by side with their peers."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import BadValue

if TYPE_CHECKING:
    from jsonargparse import Namespace
    from rich.console import Console

    from regard_workbench.bench.case import Case
    from regard_workbench.bench.run import Row
    from regard_workbench.cli.common.parser import Parser

SUMMARY = "Measure the promised numbers side by side with their peers."
EXAMPLES = (
    "regard bench --device cpu",
    "regard bench --only window,additive-time --json > window.json",
    "regard bench --device cuda --seconds 200 --json bench.json --figure speed.svg",
)

TABLE_WIDTH = 150  # when stdout is not a terminal


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    devices = "where to measure; auto takes cuda when there is one. Each device has its own cases and bars"
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help=devices)
    names = "cases, families or beginnings of names, joined by commas, in the order to run them; see --list"
    parser.add_argument("--only", type=str, metavar="NAME", help=names)
    record = "leave out the cases that this file has a row of, written by --json in a run that was cut short"
    parser.add_argument("--missing", type=str, metavar="FILE", help=record)
    parser.add_argument("--list", action="store_true", help="show the cases and their bars, measure nothing")
    parser.add_argument("--quick", action="store_true", help="few repeats: a first look, not for the record")
    rows = "rows as JSON on stdout instead of a table; with a FILE, into that after every case, beside the table"
    parser.add_argument("--json", type=str, nargs="?", const="-", metavar="FILE", help=rows)
    limit = "begin no further case after so many; those that matter most come first"
    parser.add_argument("--seconds", type=float, metavar="N", help=limit)
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown, for a document")
    picture = "also draw how fast each case is beside its best peer (.svg, .pdf or .png)"
    parser.add_argument("--figure", type=str, metavar="FILE", help=picture)


def run(options: Namespace) -> int:
    """Measure the chosen cases. A missed bar is a result; a wrong result or an error in a case gives exit code 1."""
    from rich.console import Console

    from regard_workbench.bench.case import Setting
    from regard_workbench.bench.checkout import elsewhere, load_cases
    from regard_workbench.bench.run import footer, markdown, table
    from regard_workbench.bench.run import run as measure

    checkout = load_cases()
    if checkout is None:
        print(elsewhere(), file=sys.stderr)
    if options.list:
        return _list(_chosen(options, _listed(options.device)), options.json is not None)
    if options.figure is not None:
        _check_figure(options.figure)
    kept = None if options.json in (None, "-") else _checked_folder("--json", options.json)
    setting = Setting(device=_device(options.device), quick=options.quick)
    cases = _chosen(options, setting.device)
    progress = Console(stderr=True)
    with progress.status("starting") as status:

        def announce(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                print(text, file=sys.stderr)

        def keep(rows: list[Row]) -> None:
            if kept is not None:
                kept.write_text(json.dumps(rows, indent=1, ensure_ascii=False))

        seconds = math.inf if options.seconds is None else options.seconds
        ahead = {} if checkout is None else {"compile_ahead": checkout.compile_ahead}
        rows = measure(cases, setting, announce, keep, seconds, **ahead)

    if options.json == "-":
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif options.markdown:
        print(markdown(rows))
    else:
        console = _wide_console()
        console.print(table(rows))
        console.print(footer(rows), highlight=False)
    if options.figure is not None:
        from regard_workbench.bench.figure import draw

        draw(rows, options.figure)
    return 1 if any(row["trouble"] is not None for row in rows) else 0


def _chosen(options: Namespace, device: str) -> list[Case]:
    from regard_workbench.bench.case import select

    cases = select(options.only, device)
    if options.missing is None:
        return cases
    recorded = _recorded(options.missing)
    return [case for case in cases if case.name not in recorded]


def _recorded(path: str) -> set[str]:
    """The names of the cases that a record has a number of: a list of rows, or an object with one as `rows`."""
    try:
        kept = json.loads(Path(path).read_text())
        rows = kept["rows"] if isinstance(kept, dict) else kept
        return {row["name"] for row in rows if row["trouble"] is None}
    except (OSError, ValueError, KeyError, TypeError) as trouble:
        raise BadValue(
            f"--missing: {path!r} is no record of this command ({type(trouble).__name__}: {trouble}). "
            "Give a file that --json FILE wrote."
        ) from trouble


def _list(cases: list[Case], as_json: bool) -> int:
    entries = [
        {
            "name": c.name,
            "work": c.work,
            "peer": c.peer,
            "relation": "<=" if c.at_most else ">=",
            "bar": c.bar,
            "unit": c.unit,
        }
        for c in cases
    ]
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return 0
    from rich import box
    from rich.table import Table

    shown = Table("case", "work", "against", "bar", box=box.SIMPLE_HEAD, pad_edge=False)
    for case in cases:
        shown.add_row(case.name, case.work, case.peer, case.bound)
    _wide_console().print(shown)
    return 0


def _listed(asked: str) -> str:
    """The device whose cases are listed; those of a GPU can be listed without one."""
    return "cuda" if asked == "cuda" else _device(asked)


def _check_figure(path: str) -> None:
    """Refuse an unusable figure path before a long measurement."""
    kinds = (".svg", ".pdf", ".png")
    if Path(path).suffix not in kinds:
        raise BadValue(f"--figure: expected a file that ends in {', '.join(kinds)}, got {path!r}.")
    _checked_folder("--figure", path)
    if find_spec("matplotlib") is None:
        raise BadValue(
            "--figure: matplotlib is not installed here. Keep the rows with --json FILE and draw them later."
        )


def _checked_folder(flag: str, path: str) -> Path:
    if not Path(path).absolute().parent.is_dir():
        raise BadValue(f"{flag}: there is no folder {str(Path(path).absolute().parent)!r} to write to.")
    return Path(path)


def _device(asked: str) -> str:
    import torch

    from regard_workbench.bench.case import CASES

    available = torch.cuda.is_available()
    if asked == "auto":
        return "cuda" if available and any(CASES[name].device == "cuda" for name in CASES) else "cpu"
    if asked == "cuda" and not available:
        raise BadValue("--device: cuda was asked for, but torch sees no CUDA device here; try --device cpu")
    return asked


def _wide_console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)
