"""The contents of a page as plain data: printed by `regard show --json`, and laid out by `page.py`."""

from __future__ import annotations

import dataclasses
from typing import Any

from regard import nn
from regard.nn.parts.mechanism import Entry, options_of
from regard.observation import architecture
from regard_workbench.cli.common import docstring
from regard_workbench.cli.common.catalogue import Item, family, namesakes
from regard_workbench.cli.common.inventory import MODELS_AND_TASKS
from regard_workbench.cli.show import code_paths, examples, options, toy

Facts = dict[str, Any]

_CAUSAL = {"yes": "yes, always", "no": "no", "option": "with causal=True"}


def of_mechanism(entry: Entry, given: dict[str, Any]) -> Facts:
    """The facts of a mechanism; `given` are its options."""
    doc = docstring.read(entry.layer)
    shown_with = {**entry.needs, **given}
    with toy.seeded():
        layer = nn.build(entry.name, dim=toy.WIDTH, **shown_with)
        count = sum(parameter.numel() for parameter in layer.parameters())
        run = [dataclasses.asdict(path) for path in code_paths.of_layer(layer)]
        picture = toy.of_layer(layer)
        network = architecture.of_layer(nn.build(entry.name, dim=toy.WIDTH, **shown_with))
    return {
        "kind": "mechanism",
        "name": entry.name,
        "aliases": list(entry.aliases),
        "namesakes": namesakes(entry),
        "family": family(entry),
        "summary": doc.summary,
        "formula": "\n".join(text for kind, text in doc.body if kind == "formula"),
        "body": _body(doc),
        "paper": doc.labelled.get("Paper", doc.labelled.get("Papers", "")),
        "empty_row": doc.labelled.get("Empty row", ""),
        "when": doc.labelled.get("When to use", ""),
        "options": options.rows(options_of(entry.layer), docstring.meanings(entry.layer)),
        "causal": entry.causal,
        "causal_in_words": _CAUSAL[entry.causal],
        "time": entry.time,
        "memory": entry.memory,
        "shown_with": {"dim": toy.WIDTH, **shown_with},
        "parameters": count,
        "runs": run,
        "example": doc.example,
        "picture": _picture(picture),
        "architecture": network.to_dict(),
    }


def of_value(item: Item) -> Facts:
    """The facts of a mask, a score, a bias, a normaliser, an implementation, a model or a task."""
    if item.kind in MODELS_AND_TASKS:
        from regard_workbench.cli.show import models_and_tasks

        return models_and_tasks.of_item(item)
    doc = docstring.read(item.thing)
    drawn = examples.of(item)
    return {
        "kind": item.kind,
        "name": item.name,
        "call": item.call,
        "summary": doc.summary,
        "body": _body(doc),
        "example": drawn[0] if drawn else "",
        "picture": _picture(drawn[1]) if drawn else None,
    }


def _body(doc: docstring.Doc) -> list[Facts]:
    return [{"kind": kind, "text": text} for kind, text in doc.body]


def _picture(picture: toy.Picture) -> Facts:
    rows, columns = picture.axes
    heads = [[[float(f"{number:.4g}") for number in row] for row in head.tolist()] for head in picture.heads]
    return {
        "quantity": picture.quantity,
        "meaning": picture.means,
        "input": picture.about,
        "rows": rows,
        "columns": columns,
        "heads": heads,
    }
