"""A registry of named objects with helpful errors, and the parser of names with options.

>>> parse("local(window=65, positions=rotary)")
('local', {'window': 65, 'positions': 'rotary'})
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from regard.errors import BadType, BadValue, unknown_name

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Objects of one kind by name: scores, normalisers, mechanisms, models, tasks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> Thing:
        """Register `thing` under `name`; the latest registration wins, so that a notebook cell can be run again."""
        self._things[name] = thing
        return thing

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things:
            raise unknown_name(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def names(self) -> list[str]:
        """Every registered name, in the order of registration."""
        return list(self._things)


def calls_of(room: str) -> dict[str, str]:
    """How to call each constructor of a module such as `regard.scores`: additive → scores.additive(weight)."""
    module = sys.modules[room]
    found = {}
    for name in module.__all__:
        made = getattr(module, name)
        if name.islower() and callable(made) and name != "named":
            needed = [p.name for p in inspect.signature(made).parameters.values() if p.default is p.empty]
            found[name] = f"{room.removeprefix('regard.')}.{name}({', '.join(needed)})"
    return found


def call_meant(given: object, room: str) -> str:
    """A hint where a value was expected and a name, or a constructor that was not called, was given."""
    calls = calls_of(room)
    asked = given if isinstance(given, str) else getattr(given, "__name__", "")
    near = difflib.get_close_matches(asked.replace("-", "_"), calls, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {calls[near[0]]}?"
    return f"There are {', '.join(calls.values())}."


def options_of(cls: type, leading: int) -> dict[str, inspect.Parameter]:
    """The options of a class by name, without self and the `leading` arguments, which are always given.

    Where a constructor passes `**options` on, those of its parent follow.
    """
    found: dict[str, inspect.Parameter] = {}
    for parent in cls.__mro__:
        if "__init__" not in parent.__dict__:
            continue
        parameters = list(inspect.signature(parent.__dict__["__init__"]).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return dict(list(found.items())[leading:])


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first option that `owner` does not have, listing those it has."""
    for option in given:
        if option not in known:
            raise unknown_name(f"option of {owner}", option, known)


_CALL = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.+)", re.DOTALL)


def parse(text: object) -> tuple[str, dict[str, Any]]:
    """`NAME(option=value, …)` as a name and its options.

    A value is a number, True, False, None, a tuple of such, a quoted text, a bare word (`rotary`, `static-memory`), or
    a name with its own options, which stays text. The meaning of a bare word (`false`) depends on the declared type of
    the option, so words stay text here and are converted by `regard.core.options`.
    """
    if not isinstance(text, str):
        raise BadType(
            f"name: expected a text such as 'local(window=65)', got {text!r} ({type(text).__name__})."
        )
    call = _CALL.fullmatch(text)
    options = [_OPTION.fullmatch(part) for part in split(call[2] or "")] if call else []
    if call is None or not all(options):
        raise _unreadable(text)
    return call[1], {option[1]: _value(option[2], text) for option in options if option}


def written(name: str, options: Mapping[str, Any]) -> str:
    """The text that `parse` reads as this name with these options.

    >>> written("causal", {"window": 4, "positions": "rotary(base=5)", "bias": False})
    'causal(window=4, positions=rotary(base=5), bias=False)'
    """
    parts = []
    for option, value in options.items():
        bare = f"{option}={value}"
        plain = isinstance(value, str) and _CALL.fullmatch(value) and len(split(value)) == 1
        plain = plain and _value(value, bare) == value
        parts.append(bare if plain else f"{option}={value!r}")
    return f"{name}({', '.join(parts)})" if parts else name


def split(text: str) -> list[str]:
    """The parts of a text between commas outside of brackets and quotes, without blank parts."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and parts[-1].rstrip()[-1:] in ("", *"=,([{"):  # not that of "it's"
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth = max(0, depth - 1)
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part for part in parts if part.strip()]


def _value(text: str, whole: str) -> Any:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if _CALL.fullmatch(text):
            return text
        raise _unreadable(whole) from None


def _unreadable(text: str) -> BadValue:
    return BadValue(
        f"name: expected NAME or NAME(option=value, …) with plain numbers, words, True, False or None, got {text!r}."
    )
