"""`regard show NAME`: a page on one mechanism, model, task, mask, score, bias, normaliser or implementation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from regard.errors import BadValue
from regard_workbench.cli.common.inventory import address_of

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.cli.show.facts import Facts

SUMMARY = "Explain a mechanism (what it computes and costs, how its weights look), a model or a task."
EXAMPLES = ("regard show local-p", "regard show transformer --svg transformer.svg")

LEAST_WIDTH = 40
ASKED = ("mechanism", "model", "task")


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    help_text = "a mechanism, model or task, with options in parentheses; or KIND.NAME: masks.causal, models.ntm"
    parser.add_argument("name", metavar="NAME", type=str, help=help_text)
    parser.add_argument(
        "--kind", metavar="KIND", type=str, help="where a name has several meanings: mechanism, model or task"
    )
    parser.add_argument("--width", type=int, help="width in columns (default: that of the terminal, at most 120)")
    parser.add_argument("--svg", metavar="FILE", type=str, help="also write the picture of the network to this file")
    parser.add_argument("--json", action="store_true", help="the same as data")


def run(options: Namespace) -> int:
    """Print the page or the JSON."""
    if options.width is not None and options.width < LEAST_WIDTH:
        raise BadValue(f"--width: expected at least {LEAST_WIDTH} columns, got {options.width}.")
    address = _place(options.name, options.kind)
    address_of(address)  # refuses an unknown name before torch is imported
    from regard_workbench.cli.common import catalogue
    from regard_workbench.cli.common.console import console, put
    from regard_workbench.cli.show import facts
    from regard_workbench.cli.show.page import page

    catalogued = catalogue.find(address)
    content = facts.of_value(catalogued) if isinstance(catalogued, catalogue.Item) else facts.of_mechanism(*catalogued)
    if options.svg is not None:
        _write_svg(options.svg, options.name, content)
    if options.json:
        print(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        out = console(options.width)
        put(out, page(content, out.width))
    return 0


def _place(name: str, kind: str | None) -> str:
    """The name with its kind in front: models.ntm."""
    if kind is None:
        return name
    if kind.removesuffix("s") not in ASKED:
        raise BadValue(f"--kind: expected {', '.join(ASKED[:-1])} or {ASKED[-1]}, got {kind!r}.")
    return f"{kind.removesuffix('s')}s.{name}"


def _write_svg(path: str, name: str, content: Facts) -> None:
    from pathlib import Path

    from regard.observation import architecture

    if not content.get("architecture"):
        raise BadValue(f"--svg: {name} has no picture of a network; models and mechanisms have one.")
    try:
        Path(path).write_text(
            architecture.svg(architecture.Diagram.from_dict(content["architecture"]), _note(content)), encoding="utf-8"
        )
    except OSError as error:
        raise BadValue(f"--svg: cannot write {path}: {error.strerror or error}.") from error


def _note(content: Facts) -> str:
    """What the picture was made for."""
    if "built_for" in content:
        return f"built for {content['built_for']}"
    return ", ".join(f"{name}={value}" for name, value in content["shown_with"].items())
