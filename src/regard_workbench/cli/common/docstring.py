"""Parse a docstring of this project into its parts: summary, formula, Paper, Empty row, When to use, Args, example."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from textwrap import dedent

_LABEL = re.compile(r"(Papers?|Empty row|When to use|Note):(?:\s+(.*))?$")
_OPTION = re.compile(r"(\w+):\s+(.*)$")


@dataclass
class Doc:
    """The parts of a docstring; missing ones are empty."""

    summary: str = ""
    body: list[tuple[str, str]] = field(default_factory=list)  # ("formula" or "note", text), in the order written
    labelled: dict[str, str] = field(default_factory=dict)  # "Paper", "Empty row", …
    options: dict[str, str] = field(default_factory=dict)  # the lines under Args:
    example: str = ""  # the >>> lines and what they print


def read(thing: object) -> Doc:
    """The parts of the docstring of `thing` itself, not of its base classes."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    text, _, example = text.partition(">>>")
    doc = Doc(example=(">>>" + example).strip() if example else "")
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip())):
        if block.startswith(" "):
            doc.body.append(("formula", dedent(block).rstrip()))  # line breaks and columns kept
        elif number == 0:
            doc.summary = _joined(block)
        elif block.startswith("Args:"):
            doc.options = _options(block)
        elif _LABEL.match(block.partition("\n")[0]):
            doc.labelled |= _labelled(block)
        else:
            doc.body.append(("note", _joined(block)))
    return doc


def meanings(layer: type) -> dict[str, str]:
    """The meaning of each option of a class: declared, or in its own docstring first, then in its base classes'."""
    by_option = {name: declaration.about for name, declaration in getattr(layer, "declared", {}).items()}
    for cls in layer.__mro__:
        if "__doc__" in cls.__dict__:
            for name, meaning in read(cls).options.items():
                by_option.setdefault(name, meaning)
    return by_option


def _labelled(block: str) -> dict[str, str]:
    """Labelled lines (`Paper: …`, `Empty row: …`); a line without a label continues the one before."""
    labelled: dict[str, list[str]] = {}
    for line in block.splitlines():
        start = _LABEL.match(line)
        if start and not line.startswith(" "):
            lines = labelled.setdefault(start[1], [])
            lines.append(start[2] or "")
        else:
            lines.append(line.strip())
    return {label: _joined("\n".join(lines)) for label, lines in labelled.items()}


def _options(block: str) -> dict[str, str]:
    lines = dedent(block.partition("\n")[2]).splitlines()
    options: dict[str, str] = {}
    name = ""
    for line in lines:
        start = _OPTION.match(line)
        if start and not line.startswith(" "):
            name, options[start[1]] = start[1], start[2]
        elif name:
            options[name] += " " + line.strip()
    return options


def _joined(block: str) -> str:
    return " ".join(block.split())
