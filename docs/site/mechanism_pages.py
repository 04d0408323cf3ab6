"""A page for each mechanism, made when the site is built from what `regard show` knows: docstring, cost, picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import heatmap
import mathml
from api_pages import path_of
from reference_page import options, table

from regard import nn
from regard.observation import architecture
from regard_workbench.cli.common.catalogue import rows_of_things
from regard_workbench.cli.common.inventory import COST_LETTERS
from regard_workbench.cli.show import facts as show

Facts = dict[str, Any]

INDEX = """\
# Mechanisms

Each mechanism is a layer `layer(query, source=None, *, mask=None, state=None)`, (b,q,dim) → (b,q,dim), built by name:
`regard.nn.build("local", dim=256, num_heads=8, window=65)`. The same names go into any model with `--attention`, and
into Hugging Face models as `"regard:local(window=65)"` where the mechanism has no weights of its own.

The pages are made from the docstrings, and their pictures from the layers, each time the site is built.
Costs: {letters}. *Causal*: always (yes), never (no), or with `causal=True` (option).
"""


def families() -> dict[str, list[Facts]]:
    """The rows of `regard list mechanisms` by family."""
    found: dict[str, list[Facts]] = {}
    for row in rows_of_things("mechanisms"):
        found.setdefault(row["family"], []).append(row)
    return found


def pages() -> Iterator[tuple[str, str]]:
    """(path on the site, text) of the index, of every page, and of every drawing."""
    yield "mechanisms/index.md", index()
    for name in nn.names():
        found = show.of_mechanism(nn.entry(name), {})
        yield f"mechanisms/{name}.md", page(found)
        yield f"mechanisms/{name}.svg", drawing(found)


def index() -> str:
    """All mechanisms in tables, by family."""
    parts = [INDEX.format(letters=COST_LETTERS)]
    for family, rows in families().items():
        parts.append(f"## {family}\n")
        cells = [[f"[`{row['name']}`]({row['name']}.md)", row["summary"], row["time"], row["causal"]] for row in rows]
        parts.append(table(["name", "what it does", "time", "causal"], cells))
    return "\n".join(parts)


def page(found: Facts) -> str:
    """The page of one mechanism."""
    name = found["name"]
    layer = nn.entry(name).layer
    also = "".join(f", also `{alias}`" for alias in found["aliases"])
    family = f"{found['family'][:1].lower()}{found['family'][1:]}"
    body = [mathml.block(one["text"]) if one["kind"] == "formula" else plain(one["text"]) for one in found["body"]]
    parts = [
        f"# {name}\n",
        f"{plain(found['summary'])}\n",
        f'<p class="family">{family}{also}</p>\n',
        "## Formula\n",
        *(f"{one}\n" for one in body),
        "## When to use it\n",
        f"{plain(capital(found['when']))}\n",
        "## Picture\n",
        figure(found),
        "## Cost\n",
        cost(found),
        "## Options\n",
        options(found["options"]),
        "## A query that sees nothing\n",
        f"{plain(capital(found['empty_row']))}\n",
        "## Example\n",
        f"```pycon\n{found['example']}\n```\n",
        "## Paper\n",
        f"{plain(capital(found['paper']))}\n",
        f"In the terminal: `regard show {name}`. The class: [`regard.nn.{layer.__name__}`][{path_of(layer)}].\n",
    ]
    return "\n".join(parts)


def figure(found: Facts) -> str:
    """The weights on the toy input, and the network inside."""
    picture = found["picture"]
    built = ", ".join(f"{name}={value}" for name, value in found["shown_with"].items())
    notes = ". ".join(capital(note) for note in picture["input"])
    words = (
        f"{capital(picture['quantity'])} with {built}. Row i is {picture['rows']}, column j {picture['columns']}; "
        f"a cell says {picture['meaning']}. Blank cells are exactly 0. Toy input: {notes}."
    )
    drawn = heatmap.svg(picture["heads"], picture["rows"], picture["columns"])
    network = f"![The network inside {found['name']}]({found['name']}.svg){{ .network loading=lazy }}\n"
    return f"<figure>{drawn}<figcaption>{plain(words)}</figcaption></figure>\n\n{network}"


def drawing(found: Facts) -> str:
    """The network of the built layer, as `regard show NAME --svg FILE` writes it."""
    note = ", ".join(f"{name}={value}" for name, value in found["shown_with"].items())
    return architecture.svg(architecture.Diagram.from_dict(found["architecture"]), note)


def cost(found: Facts) -> str:
    """Time, memory, parameters, causality."""
    built = ", ".join(f"{name}={value}" for name, value in found["shown_with"].items())
    rows = [
        ["time", found["time"]],
        ["memory", found["memory"]],
        ["parameters", f"{found['parameters']:,} with {built}"],
        ["causal", found["causal_in_words"]],
    ]
    return f"{table(['', 'cost'], rows)}\n{COST_LETTERS}.\n"


def plain(text: str) -> str:
    """Words of a docstring: what Markdown would read as emphasis or HTML stays as written, code in backticks too."""
    parts = text.split("`")
    parts[::2] = [part.replace("_", "\\_").replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def capital(text: str) -> str:
    """The text with a capital letter in front."""
    return text[:1].upper() + text[1:]
