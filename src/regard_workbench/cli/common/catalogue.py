"""Everything that can be listed and shown: mechanisms, the values they are made of, models and tasks."""

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
from regard.errors import BadValue
from regard.nn.multihead import Multihead
from regard.nn.parts.alignment import Alignment
from regard.nn.parts.mechanism import Entry
from regard.registry import parse
from regard_workbench.cli.common import docstring
from regard_workbench.cli.common.mistakes import nearest

if TYPE_CHECKING:
    from regard_workbench.tasks.parts.problem import Problem

COST_LETTERS = "n queries, m keys or slots, d width, w window, s segment, N×M memory"
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
    return any(isinstance(part, nn.Mechanism) for part in layer.modules() if part is not layer)


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
        given = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(parameter.name + given)
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

    known: dict[str, Any] = {name: ADDITIVE[name] for name in ADDITIVE}
    known |= {name: SCHEMES[name] for name in SCHEMES if name not in known}
    return [
        Item("positions", name, f'positions="{name}"', docstring.read(thing).summary, thing)
        for name, thing in known.items()
    ]


# A new kind is one more line: a function that returns its items. Mechanisms have a table of their own.
KINDS: dict[str, Callable[[], list[Item]]] = {
    "masks": _values("masks"),
    "scores": _values("scores"),
    "biases": _values("biases"),
    "normalizers": _values("normalizers"),
    "positions": _positions,
    "implementations": _implementations,
}
MECHANISMS = "mechanisms"


def _models() -> list[Item]:
    from regard_workbench import models

    return [_item("models", name, models.MODELS[name]) for name in models.names()]


def _tasks() -> list[Item]:
    from regard_workbench import tasks

    return [_item("tasks", name, tasks.TASKS[name]) for name in tasks.names()]


def _item(kind: str, name: str, thing: Any) -> Item:
    return Item(kind, name, name, docstring.read(thing).summary, thing)


# What is trained, and on what. Loaded when asked for: listing mechanisms does not need them.
MODELS_AND_TASKS: dict[str, Callable[[], list[Item]]] = {"models": _models, "tasks": _tasks}


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
    """The thing with a name: `local`, `local(window=9)`, `masks.causal`, `models.ntm`.

    Without a kind, mechanisms come first, then models and tasks, then masks, scores, biases and normalisers.
    """
    kind, dot, rest = asked.partition(".")
    if dot and kind in KINDS:
        for item in KINDS[kind]():
            if item.name.replace("-", "_") == rest.replace("-", "_"):
                return item
    elif dot and kind == MECHANISMS:
        return find(rest)
    elif dot and kind in MODELS_AND_TASKS:
        found = _find_model_or_task([kind], rest)
        if found:
            return found
    elif asked and (asked[-1] == ")" or "(" not in asked):
        plain, options = parse(asked) if "(" in asked else (asked, {})
        mechanism = _mechanism_names().get(plain.replace("_", "-"))
        if mechanism:
            return nn.entry(mechanism), options
        named = _find_model_or_task(list(MODELS_AND_TASKS), asked)
        if named:
            return named
        for items in KINDS.values():
            for item in items():
                if item.name.replace("-", "_") == asked.replace("-", "_"):
                    return item
    raise BadValue(
        f"NAME: there is no {asked!r}.{nearest(asked, known())} `regard list` shows the mechanisms, `regard list KIND` "
        f"the {', '.join([*MODELS_AND_TASKS, *KINDS])}."
    )


def namesakes(thing: Entry | Item) -> list[str]:
    """Where the models and tasks stand that are called like a mechanism, a model or a task: tasks.graph."""
    names = (thing.name, *thing.aliases) if isinstance(thing, Entry) else (thing.name,)
    kind = thing.kind if isinstance(thing, Item) else ""
    others = [items() for other, items in MODELS_AND_TASKS.items() if other != kind]
    return [f"{item.kind}.{item.name}" for items in others for item in items if item.name in names]


def _find_model_or_task(kinds: list[str], asked: str) -> Item | None:
    """A model or a task, with its options in parentheses."""
    plain, options = parse(asked) if asked[-1:] == ")" else (asked, {})
    for kind in kinds:
        for item in MODELS_AND_TASKS[kind]():
            if item.name == plain.replace("_", "-"):
                return replace(item, given=options)
    return None


def known() -> list[str]:
    """Every name that `find` takes; those of values, models and tasks also with their kind in front."""
    pieces = [item for items in (*MODELS_AND_TASKS.values(), *KINDS.values()) for item in items()]
    dotted = [f"{item.kind}.{item.name}" for item in pieces]
    return [*_mechanism_names(), *dict.fromkeys(item.name for item in pieces), *dotted]


def _mechanism_names() -> dict[str, str]:
    """Names and aliases of mechanisms, each with its canonical name."""
    entries = [nn.entry(name) for name in nn.names()]
    return {spelled: entry.name for entry in entries for spelled in (entry.name, *entry.aliases)}
