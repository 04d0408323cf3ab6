"""The things that can be listed and shown: mechanisms, the values they are made of, models and tasks."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard import nn
from regard.dispatch.plan import NAMES
from regard.nn.multihead import Multihead
from regard.nn.parts.alignment import Alignment
from regard.nn.parts.mechanism import Entry
from regard.registry import Registry
from regard_workbench.cli.common import docstring
from regard_workbench.cli.common.inventory import (
    MECHANISMS,
    MODELS_AND_TASKS,
    REGISTRIES,
    VALUES,
    Row,
    address_of,
    names_of,
)

if TYPE_CHECKING:
    from regard_workbench.tasks.parts.problem import Problem

WIDTH = 64  # of a layer that is built to see what it is made of


@dataclass(frozen=True)
class Item:
    """One thing that can be listed and shown."""

    kind: str
    name: str
    call: str  # how it is written: window(before, after=None, …)
    summary: str
    thing: Any
    given: dict[str, Any] = field(default_factory=dict)  # the options of a model or a task that were given


def mechanisms() -> list[Entry]:
    """Every mechanism, sorted by family, depth of inheritance and name."""
    entries = [nn.entry(name) for name in nn.names()]
    titles = list(FAMILIES)
    families = {entry.name: titles.index(family(entry)) for entry in entries}
    return sorted(entries, key=lambda e: (families[e.name], len(e.layer.__mro__), e.name))


def family(entry: Entry) -> str:
    """The heading of a mechanism, by its class or by what it is made of."""
    return next(title for title, belongs in FAMILIES.items() if belongs(entry))


def _made_of_mechanisms(entry: Entry) -> bool:
    with torch.random.fork_rng(devices=[]):
        layer = nn.build(entry.name, dim=WIDTH, **entry.needs)
    return any(isinstance(module, nn.Mechanism) for module in layer.modules() if module is not layer)


FAMILIES: dict[str, Callable[[Entry], bool]] = {
    "Multi-head attention and its presets": lambda entry: issubclass(entry.layer, Multihead),
    "Alignment: the score of a paper on the rows of a source": lambda entry: issubclass(entry.layer, Alignment),
    "Made of several attentions": _made_of_mechanisms,
    "Running sums and memories": lambda entry: True,
}


def _values(room: str) -> Callable[[], list[Item]]:
    """The constructors of a module of values."""

    def items() -> list[Item]:
        module = importlib.import_module(f"regard.{room}")
        offered = [name for name in module.__all__ if name[0].islower() and name != "named"]
        return [_value(room, name, getattr(module, name)) for name in offered]

    return items


def _value(room: str, name: str, thing: Any) -> Item:
    words = []
    for parameter in inspect.signature(thing).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(parameter.name + default)
    return Item(room, name, f"{room}.{name}({', '.join(words)})", docstring.read(thing).summary, thing)


def _implementations() -> list[Item]:
    return [
        Item("implementations", name, f'impl="{name}"', docstring.read(_Written(name)).summary, _Written(name))
        for name in NAMES
    ]


class _Written:
    """The docstring of an implementation, read from its file: importing it may start a compiler."""

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(f"regard.implementations.{name}")
        if spec is None or spec.origin is None:
            self.__doc__ = "Not in this version yet."
        else:
            written = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
            written = written.removeprefix(f"`{name}`: ")
            self.__doc__ = written[:1].upper() + written[1:]


def _positions() -> list[Item]:
    from regard.nn.parts.multihead_positions import SCHEMES
    from regard.nn.positions import ADDITIVE

    schemes: dict[str, Any] = {name: ADDITIVE[name] for name in ADDITIVE}
    schemes |= {name: SCHEMES[name] for name in SCHEMES if name not in schemes}
    return [
        Item("positions", name, f'positions="{name}"', docstring.read(thing).summary, thing)
        for name, thing in schemes.items()
    ]


def _registry(kind: str) -> Registry[type]:
    _, home, name = REGISTRIES[kind]
    registry: Registry[type] = getattr(importlib.import_module(home), name)
    return registry


def _registered(kind: str) -> Callable[[], list[Item]]:
    """The models or the tasks."""
    return lambda: [_item(kind, name) for name in sorted(_registry(kind).names())]


def _item(kind: str, name: str) -> Item:
    thing = _registry(kind)[name]
    return Item(kind, name, name, docstring.read(thing).summary, thing)


# A new kind is one more line, and its name in `inventory.py`. Mechanisms have a table of their own.
ITEMS: dict[str, Callable[[], list[Item]]] = {
    "models": _registered("models"),
    "tasks": _registered("tasks"),
    "masks": _values("masks"),
    "scores": _values("scores"),
    "biases": _values("biases"),
    "normalizers": _values("normalizers"),
    "positions": _positions,
    "implementations": _implementations,
}
KINDS = {kind: ITEMS[kind] for kind in VALUES}


@functools.cache
def posed(task: str) -> tuple[Problem, ...]:
    """The problems a task poses, the usual one first."""
    from regard_workbench import tasks

    return tuple(tasks.build(task).problems())


@functools.cache
def reached(task: str) -> dict[str, str]:
    """What the recipe of a task reaches without files, by metric, in words."""
    from regard_workbench import tasks

    return tasks.build(task).reached()


def find(asked: str) -> tuple[Entry, dict[str, Any]] | Item:
    """The thing with a name, as `address_of` finds it: a mechanism with its options, or anything else."""
    kind, name, options = address_of(asked)
    if kind == MECHANISMS:
        return nn.entry(name), options
    if kind in MODELS_AND_TASKS:
        return replace(_item(kind, name), given=options)
    return next(item for item in ITEMS[kind]() if item.name == name)


def namesakes(thing: Entry | Item) -> list[str]:
    """Where the models and tasks stand that are called like a mechanism, a model or a task: tasks.graph."""
    names = (thing.name, *thing.aliases) if isinstance(thing, Entry) else (thing.name,)
    kinds = [kind for kind in MODELS_AND_TASKS if not isinstance(thing, Item) or kind != thing.kind]
    return [f"{kind}.{name}" for kind in kinds for name in names_of(kind) if name in names]


def rows_of_things(kind: str) -> list[Row]:
    """What `regard list` says of each thing of a kind, from the things themselves."""
    if kind == MECHANISMS:
        return [
            {
                "name": entry.name,
                "aliases": list(entry.aliases),
                "family": family(entry),
                "summary": docstring.read(entry.layer).summary,
                "causal": entry.causal,
                "time": entry.time,
                "memory": entry.memory,
            }
            for entry in mechanisms()
        ]
    return [_row(item) for item in ITEMS[kind]()]


def _row(item: Item) -> Row:
    """A value with its call, a model with what it gives, or a task with the answers it asks for."""
    if item.kind in VALUES:
        return {"kind": item.kind, "name": item.name, "call": item.call, "summary": item.summary}
    row = {"kind": item.kind, "name": item.name, "summary": item.summary}
    if item.kind == "models":
        return {**row, "gives": list(item.thing.gives), "attention": item.thing.takes_attention}
    answers = list(dict.fromkeys(problem.answer.words for problem in posed(item.name)))
    recipe = item.thing.recipe
    return {
        **row,
        "answers": answers,
        "metric": item.thing.metric.name,
        "model": recipe.model,
        "steps": recipe.steps,
        "reaches": reached(item.name),
    }
