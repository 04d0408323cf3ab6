"""The layout of a page for the terminal: title, summary, formula, picture, options, cost, example."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.observation import architecture
from regard_workbench.cli.common import shades
from regard_workbench.cli.common.inventory import COST_LETTERS
from regard_workbench.cli.show.facts import Facts

INDENT = 2
ENDS = ("input", "output")  # nodes of a picture that are no part of the network
LEGEND_WIDTH = 34  # columns that a legend needs beside its picture


def page(facts: Facts, width: int) -> RenderableType:
    """The whole page."""
    sections: list[tuple[str, RenderableType | None]] = [
        ("", Text(facts["summary"])),
        *(("", _paragraph(paragraph, width)) for paragraph in facts["body"]),
        ("When to use", _text(facts, "when")),
        (_picture_title(facts), _picture(facts, width)),
        (_network_title(facts), _network(facts, width)),
        ("Gives", _relation(facts, "gives", "tasks")),
        ("Answers", _relation(facts, "answers", "models")),
        ("Attention", _attention(facts)),
        ("Recipe", _recipe(facts)),
        ("Options", _options(facts)),
        ("Cost", _cost(facts)),
        ("What runs it here", _runs(facts)),
        ("A row without visible keys", _text(facts, "empty_row")),
        ("Commands" if facts.get("commands") else "Example", _example(facts, width)),
        ("Paper", _text(facts, "paper")),
        ("", _namesakes(facts)),
    ]
    blocks: list[RenderableType] = [_title(facts, width)]
    for title, body in sections:
        if body is None:
            continue
        blocks.append(Text(""))
        if title:
            blocks.append(Text(title, style="bold"))
        indent = INDENT if title and not isinstance(body, _Drawing) else 0  # a drawing has its own margin
        blocks.append(Padding(body, (0, 0, 0, indent)))
    return Group(*blocks)


def _paragraph(part: Facts, width: int) -> RenderableType:
    if part["kind"] == "note":
        return Text(part["text"])
    return Padding(Text(formula(part["text"], width - INDENT), style="cyan"), (0, 0, 0, INDENT))


def formula(text: str, width: int) -> str:
    """The formula as written; a line that is too long is broken at wide spaces."""
    lines = []
    for line in text.splitlines():
        lead = len(line) - len(line.lstrip())
        pieces, current = re.split(r"(?<=\S)(\s{2,})(?=\S)", line), ""
        for gap, piece in zip(["", *pieces[1::2]], pieces[::2], strict=True):
            if current and len(current) + len(gap) + len(piece) > width:
                lines.append(current)
                current = " " * (lead + 4) + piece
            else:
                current += gap + piece
        lines.append(current)
    return "\n".join(lines)


def _title(facts: Facts, width: int) -> RenderableType:
    name = facts.get("call") or facts["name"]
    kind = facts["kind"] if facts["kind"] == "mechanism" else facts["kind"].removesuffix("s").replace("biase", "bias")
    aliases = f" (also {', '.join(facts['aliases'])})" if facts.get("aliases") else ""
    space = max(width - len(name) - len(aliases) - len(kind), 2)
    line = Text.assemble((name, "bold"), aliases, " " * space, (kind, "dim"))
    return Group(line, Text("─" * width, style="dim"))


def _picture_title(facts: Facts) -> str:
    picture = facts["picture"]
    if picture is None:
        return ""
    if facts["kind"] != "mechanism":
        return f"{picture['quantity'].capitalize()} of {facts['example']}"
    options = ", ".join(f"{name}={value}" for name, value in facts["shown_with"].items())
    return f"{picture['quantity'].capitalize()} on a toy input, {options}"


class _Drawing(Text):
    """Text with a fixed layout."""


def _picture(facts: Facts, width: int) -> RenderableType | None:
    picture = facts["picture"]
    if picture is None:
        return None
    lifted = _needs_lifting(picture)
    shown = picture["heads"]
    if picture["quantity"] == "table":  # the smallest number is blank
        least, _ = _extremes(picture)
        shown = [[[number - least for number in row] for row in rows] for rows in shown]
    heads = [shades.drawn(rows, lifted) for rows in shown]
    heads = heads[: max(1, (width + 2) // (max(map(len, heads[0])) + 2))]  # as many as fit
    above = 2
    if len(heads) > 1:
        heads = [[f"{'':{shades.MARGIN + 1}}head {number}", *lines] for number, lines in enumerate(heads)]
        above += 1
    lines = shades.beside(heads)
    room = width - max(map(len, lines)) - 3
    if room < LEGEND_WIDTH:
        below = [" " * INDENT + line for line in _legend(picture, len(heads), width - INDENT)]
        return _Drawing("\n".join([*lines, "", *below]), no_wrap=True)
    legend = [""] * above + _legend(picture, len(heads), min(room, 60))
    return _Drawing("\n".join(shades.beside([lines, legend], gap=3)), no_wrap=True)


def _network_title(facts: Facts) -> str:
    if "built_for" in facts:
        return f"The network as built for {facts['built_for']}, {facts['parameters']:,} parameters"
    return "Inside"


def _network(facts: Facts, width: int) -> RenderableType | None:
    plain = facts.get("architecture")
    if not plain:
        return None
    diagram = architecture.Diagram.from_dict(plain)
    if facts["kind"] == "mechanism" and sum(node.kind not in ENDS for node in diagram.root.nodes()) < 2:
        return None  # one box says no more than the page
    lines = architecture.text(diagram, width - INDENT)
    return Text("\n".join(lines), no_wrap=True)


def _legend(picture: Facts, heads: int, width: int) -> list[str]:
    """The legend: axes, shades with their numbers, the input, one row as bars."""
    lines = wrap(f"Row i is {picture['rows']}, column j {picture['columns']}. A cell says {picture['meaning']}.", width)
    lines.append("")
    if picture["quantity"] == "table":
        return [*lines, *shades.key_between(*_extremes(picture))]
    if picture["quantity"] == "mask":
        return [*lines, "██  yes", "    no"]
    largest = [max(map(max, rows)) for rows in picture["heads"][:heads]]
    if heads > 1:
        most = ", ".join(f"{number:.2f}" for number in largest)
        lines += [*wrap(f"Shares of the largest weight of each head ({most}):", width), *shades.key(1.0)]
    else:
        lines += shades.key(largest[0], _needs_lifting(picture))
    lines += ["    exactly 0: hidden, or not chosen", "", *_row(picture)]
    if picture["input"]:
        toy = ". ".join(["Toy: " + picture["input"][0], *map(_capital, picture["input"][1:])])
        lines += ["", *wrap(f"{toy}.", width)]
    return lines


def _extremes(picture: Facts) -> tuple[float, float]:
    numbers = [number for rows in picture["heads"] for row in rows for number in row]
    return min(numbers), max(numbers)


def _needs_lifting(picture: Facts) -> bool:
    """Whether a few large influences (a residual path) would leave the rest blank."""
    numbers = [number for row in picture["heads"][0] for number in row]
    return bool(picture["quantity"] == "influence" and sum(numbers) / len(numbers) < 0.25 * max(numbers))


def _row(picture: Facts) -> list[str]:
    rows = picture["heads"][0]
    chosen = len(rows) * 2 // 3
    total = sum(rows[chosen])
    return [f"Row {chosen} as bars, sum {total:.2f}:", f"    {shades.bars(rows[chosen])}"]


def _options(facts: Facts) -> RenderableType | None:
    if not facts.get("options"):
        return None
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    table.add_column()
    for option in facts["options"]:
        default = "required" if option["required"] else f"= {_shown(option['default'])}"
        table.add_row(option["name"], f"{option['type']} {default}", option["meaning"])
    return table


def _shown(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _cost(facts: Facts) -> RenderableType | None:
    if "time" not in facts:
        return None
    with_options = ", ".join(f"{name}={value}" for name, value in facts["shown_with"].items())
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("time", facts["time"])
    table.add_row("memory", facts["memory"])
    table.add_row("parameters", f"{facts['parameters']:,} with {with_options}")
    table.add_row("causal", facts["causal_in_words"])
    return Group(table, Text(COST_LETTERS, style="dim"))


def _runs(facts: Facts) -> RenderableType | None:
    if not facts.get("runs"):
        return None
    blocks: list[RenderableType] = []
    for run in facts["runs"]:
        inside = f"inside it, {run['part']} ({run['mechanism']}): " if run["part"] else ""
        blocks.append(Text(inside + run["code"]))
        if run["answers"]:
            table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True)
            table.add_column(no_wrap=True)
            table.add_column(style="dim")
            for answer in run["answers"]:
                table.add_row(answer["impl"], answer["can"], answer["reason"])
            blocks.append(Padding(table, (0, 0, 0, INDENT)))
    return Group(*blocks)


def _relation(facts: Facts, relation: str, others: str) -> RenderableType | None:
    """What a model gives or which answers a task asks for, and the tasks or models on the other side."""
    if relation not in facts:
        return None
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for name, meaning in facts[relation].items():
        table.add_row(name, meaning)
    return Group(table, Text(f"{others}: {', '.join(facts[others]) or 'none yet'}"))


def _attention(facts: Facts) -> RenderableType | None:
    if "attention" not in facts:
        return None
    if not facts["attention"]:
        return Text("fixed: --attention is refused")
    usual = f"; {facts['attention_default']} by default" if facts["attention_default"] else ""
    return Text(f"--attention goes to {facts['attention']}{usual}")


def _recipe(facts: Facts) -> RenderableType | None:
    if "recipe" not in facts:
        return None
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in facts["recipe"].items()
        if value not in ({}, ()) and name != "reaches"
    )
    best = f"the best checkpoint has the {'highest' if facts['higher_is_better'] else 'lowest'} {facts['metric']}"
    scores = ", ".join(f"{name} {bound}" for name, bound in facts["reaches"].items())
    return Text(f"{settings}; {best}" + (f"\nreaches without files, on the test split: {scores}" if scores else ""))


def _example(facts: Facts, width: int) -> RenderableType | None:
    if not facts["example"] or facts["kind"] not in ("mechanism", "models", "tasks"):
        return None
    commands = facts.get("commands") or [facts["example"]]
    if facts.get("own_input"):
        commands = [*commands, f"{facts['own_input']}   # your own"]
    return Text("\n".join(_broken(command, width - INDENT) for command in commands), style="green", overflow="fold")


def _broken(command: str, width: int) -> str:
    """A command that is too long for a line, continued on the next as a shell reads it."""
    if not command.startswith("regard "):  # lines of Python
        return command
    lines = [""]
    for word in re.findall(r'"[^"]*"|\S+', command):
        if lines[-1].strip() and len(lines[-1]) + 1 + len(word) + len(" \\") > width:
            lines[-1] += " \\"
            lines.append("    " + word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _namesakes(facts: Facts) -> RenderableType | None:
    """Where to read about a model or a task of the same name."""
    if not facts.get("namesakes"):
        return None
    places = [(place.split(".")[0].removesuffix("s"), place) for place in facts["namesakes"]]
    return Text("\n".join(f"There is a {kind} of this name, too: regard show {place}" for kind, place in places))


def _text(facts: Facts, name: str) -> RenderableType | None:
    return Text(_capital(facts[name])) if facts.get(name) else None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
