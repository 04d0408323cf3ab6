"""The page of the site that lists everything that has a name, made from registries and docstrings.

The facts are those that `regard list` and `regard show` print, so the page and the command line cannot disagree.
"""

from __future__ import annotations

from typing import Any

from regard import nn
from regard.nn.parts.mechanism import options_of
from regard_workbench.cli.common import docstring
from regard_workbench.cli.common.catalogue import rows_of_things
from regard_workbench.cli.show import options as option_rows
from regard_workbench.cli.show.models_and_tasks import of_model, of_task

Facts = dict[str, Any]

HEAD = """\
# Reference

Made from the docstrings and registries of the package when the site is built.
`regard list` and `regard show NAME` print the same facts in the terminal, with a picture of the weights.

Letters: `b` batch, `h` query heads, `g` key/value heads, `q` query length, `k` key length, `d` key dim, `v` value dim.
Costs: n positions of width d, a source of m rows (or m memory slots), windows of w keys, segments of s positions, an
NTM memory of N × M.
"""
PIECES = {
    "masks": (
        "Masks say which keys a query may attend to; True means *may attend*. Combine them with `&`, `|` and `~`. "
        "Query i stands at position `i + (k − q)`, key j at j: the last query aligns with the last key."
    ),
    "scores": (
        'A score compares a query with a key. Pass the value, or the name of one without arguments: `score="dot"`.'
    ),
    "biases": "A bias is added to the scores after everything else, and receives gradient.",
    "normalizers": (
        'A normaliser turns a row of scores into weights. Pass the name or the value: `normalize="sparsemax"`.'
    ),
    "positions": (
        'Positions of a model (`--model "decoder(positions=half-wave)"`) are added to its embeddings; those of an '
        'attention (`--attention "multihead(positions=rotary)"`) enter its scores.'
    ),
    "implementations": (
        'An implementation computes a request. `impl="auto"` takes the fastest that keeps every promise '
        "([promises.md](promises.md)); a named one runs or raises `regard.Unsupported` with the reason. "
        "`regard.explain` prints the choice and why the others were not taken."
    ),
}
LAYERS = """\
## Mechanisms

Layers `layer(query, source=None, *, mask=None, state=None)`, (b,q,dim) → (b,q,dim), by name:
`regard.nn.build("local", dim=256, num_heads=8, window=65)`. The same names go into any model with `--attention`.
*Causal*: always (yes), never (no), or with `causal=True` (option).
"""


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; bars inside a cell are escaped."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def pieces(kind: str) -> str:
    """The section of one kind of piece: how each is written and what it does."""
    rows = [[f"`{row['call']}`", row["summary"]] for row in rows_of_things(kind)]
    return f"## {kind.capitalize()}\n\n{PIECES[kind]}\n\n{table(['call', 'what it computes'], rows)}"


def mechanisms() -> str:
    """The table of all mechanisms, and a section for each."""
    rows = rows_of_things("mechanisms")
    parts = [LAYERS]
    for family in dict.fromkeys(row["family"] for row in rows):
        inside = [row for row in rows if row["family"] == family]
        cells = [[_link(row), row["summary"], row["causal"], row["time"], row["memory"]] for row in inside]
        parts.append(f"{family}:\n\n{table(['name', 'what it does', 'causal', 'time', 'memory'], cells)}")
    parts += [mechanism(row["name"]) for row in rows]
    return "\n".join(parts)


def _link(row: Facts) -> str:
    also = "".join(f", `{alias}`" for alias in row["aliases"])
    return f"[`{row['name']}`](#{row['name']}){also}"


def mechanism(name: str) -> str:
    """What one mechanism computes, its options, its paper."""
    layer = nn.entry(name).layer
    doc = docstring.read(layer)
    parts = [f"### `{name}`\n", f"{doc.summary}\n"]
    parts += [body(kind, text) for kind, text in doc.body]
    for label, words in doc.labelled.items():
        parts.append(f"{'A query that sees nothing' if label == 'Empty row' else label}: {words}\n")
    parts.append(options(option_rows.rows(options_of(layer), docstring.meanings(layer))))
    return "\n".join(parts)


def body(kind: str, text: str) -> str:
    """A paragraph or a formula of a docstring."""
    return f"```text\n{text}\n```\n" if kind == "formula" else f"{text}\n"


def options(known: list[Facts]) -> str:
    """The table of what something can be built with."""
    rows = [
        [f"`{one['name']}`", f"`{one['type']}`", "" if one["required"] else f"`{one['default']!r}`", one["meaning"]]
        for one in known
    ]
    return table(["option", "type", "default", "meaning"], rows) if rows else "No options.\n"


def models() -> str:
    """Every model with its options."""
    rows = rows_of_things("models")
    overview = [[f"[`{row['name']}`](#model-{row['name']})", row["summary"]] for row in rows]
    parts = [
        '## Models\n\n`regard train TASK --model "decoder(layers=4)"`, or `regard.models.build`.\n',
        table(["name", "what it is"], overview),
    ]
    for row in rows:
        facts = of_model(row["name"], {})
        parts += [f"### Model `{row['name']}`\n", f"{facts['summary']}\n"]
        parts += [body(part["kind"], part["text"]) for part in facts["body"]]
        if facts["paper"]:
            parts.append(f"Paper: {facts['paper']}\n")
        replaced = f" `--attention` replaces: {facts['attention']}." if facts["attention"] else ""
        parts.append(f"Tasks: {', '.join(facts['tasks'])}.{replaced}\n")
        parts.append(options(facts["options"]))
    return "\n".join(parts)


def tasks() -> str:
    """Every task with its options."""
    rows = rows_of_things("tasks")
    overview = [
        [f"[`{row['name']}`](#task-{row['name']})", row["summary"], f"`{row['metric']}`", f"`{row['model']}`"]
        for row in rows
    ]
    parts = [
        "## Tasks\n\nEvery task runs without a download; files of your own go in with `--data`.\n",
        table(["name", "what is learned", "judged by", "model of the recipe"], overview),
    ]
    for row in rows:
        facts = of_task(row["name"], {})
        parts += [f"### Task `{row['name']}`\n", f"{facts['summary']}\n"]
        parts += [body(part["kind"], part["text"]) for part in facts["body"]]
        parts += [f"Models: {', '.join(facts['models'])}.\n", options(facts["options"])]
    return "\n".join(parts)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(pieces(kind) for kind in PIECES), mechanisms(), models(), tasks()])
