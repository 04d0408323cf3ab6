"""`regard show NAME`: a page on one mechanism, model, task, mask, score, bias, normaliser or implementation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from regard.errors import BadValue

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard.cli.common.parser import Parser

SUMMARY = "Explain a mechanism (what it computes and costs, how its weights look), a model or a task."
EXAMPLES = ("regard show local-p", 'regard show "local(window=9, causal=True)" --json')

LEAST_WIDTH = 40


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    what = "a mechanism, model or task, with options in parentheses; or KIND.NAME: masks.causal, models.ntm"
    parser.add_argument("name", metavar="NAME", type=str, help=what)
    parser.add_argument(
        "--width", type=int, help="width in columns (default: that of the terminal, at most 120)"
    )
    parser.add_argument("--json", action="store_true", help="the same as data")


def run(options: Namespace) -> int:
    """Print the page or the JSON."""
    from regard.cli.common import catalogue
    from regard.cli.common.console import console, put
    from regard.cli.show import facts
    from regard.cli.show.page import page

    if options.width is not None and options.width < LEAST_WIDTH:
        raise BadValue(f"--width: expected at least {LEAST_WIDTH} columns, got {options.width}.")
    found = catalogue.find(options.name)
    content = facts.of_value(found) if isinstance(found, catalogue.Item) else facts.of_mechanism(*found)
    if options.json:
        print(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        out = console(options.width)
        put(out, page(content, out.width))
    return 0
