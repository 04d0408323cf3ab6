"""`regard list`: what there is, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jsonargparse import Namespace

if TYPE_CHECKING:
    from regard.cli.pages.listing import Row
    from regard.cli.parser import Parser

SUMMARY = "List the mechanisms, the models and tasks that use them, or the pieces they are made of."
EXAMPLES = ("regard list", "regard list models --json")

WHOLES = ["models", "tasks"]
KINDS = ["mechanisms", *WHOLES, "masks", "scores", "biases", "normalizers", "implementations"]


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
    parser.add_argument("kind", nargs="?", default=KINDS[0], choices=KINDS, metavar="KIND", help=kinds)
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")


def run(options: Namespace) -> int:
    """Print the table or the JSON."""
    from regard.cli.pages import listing, wholes
    from regard.cli.pages.page import console, put

    of_mechanisms = options.kind == KINDS[0]
    rows: list[Row]
    if options.kind in WHOLES:
        rows = wholes.listed(options.kind)
    else:
        rows = listing.mechanisms() if of_mechanisms else listing.pieces(options.kind)
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return 0
    out = console(None)
    if options.kind in WHOLES:
        put(out, *wholes.table(rows))
    else:
        put(out, *(listing.grouped(rows, out.width) if of_mechanisms else listing.plain(rows)))
    return 0
