"""A registry of named objects with helpful errors, and the parser of names with options.

>>> parse("local(window=65, positions=rotary)")
('local', {'window': 65, 'positions': 'rotary'})
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from regard.errors import BadType, BadValue, closest, unknown_name

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Objects of one kind by name: scores, normalisers, mechanisms, models, tasks.

    Args:
        kind: what the objects are, for messages.
        package: a package whose files register one object each, under their own name with hyphens (`local_m.py` is
            "local-m"). Such a file is imported when its name is first looked up.
        homes: the modules of objects whose names are not those of their modules: {"global-query": "gla"}.
        others: files of the package that register nothing.
    """

    def __init__(
        self, kind: str, package: str = "", homes: Mapping[str, str] | None = None, others: Iterable[str] = ()
    ) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}
        self._package, self._homes, self._others = package, dict(homes or {}), frozenset(others)

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The module of each name that the package's files offer."""
        if not self._package:
            return {}
        spec = find_spec(self._package)
        assert spec is not None and spec.submodule_search_locations is not None
        elsewhere = {*self._others, *self._homes.values()}
        files = [file.name for file in pkgutil.iter_modules(spec.submodule_search_locations) if not file.ispkg]
        names = {file.strip("_").replace("_", "-"): file for file in files if file not in elsewhere}
        return {name: f"{self._package}.{file}" for name, file in sorted({**names, **self._homes}.items())}

    def add(self, name: str, thing: Thing) -> Thing:
        """Register `thing` under `name`; the latest registration wins, so that a notebook cell can be run again."""
        self._things[name] = thing
        return thing

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things and name in self._modules:
            import_module(self._modules[name])
        if name not in self._things:
            raise unknown_name(self.kind, name, self)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Every name: those of the package's modules in alphabetical order, then the others as they were registered."""
        return list(dict.fromkeys([*self._modules, *self._things]))


def imported_when_used(package: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are imported when they are first used.

    package: its globals, which keep what was imported. The names are those that its file imports `if TYPE_CHECKING`.
    """
    blocks = (block for block in ast.parse(Path(package["__file__"]).read_text()).body if isinstance(block, ast.If))
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    homes = {alias.name: str(line.module) for line in lines for alias in line.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        home = homes[name]
        module = None if home == package["__name__"] else import_module(home)
        package[name] = getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")
        return package[name]

    return get, lambda: sorted({*package["__all__"], *(name for name in package if name.startswith("__"))})


def calls_of(room: str) -> dict[str, str]:
    """How to call each constructor of a module such as `regard.scores`: additive → scores.additive(weight)."""
    module = sys.modules[room]
    calls = {}
    for name in module.__all__:
        constructor = getattr(module, name)
        if name.islower() and callable(constructor) and name != "named":
            needed = [p.name for p in inspect.signature(constructor).parameters.values() if p.default is p.empty]
            calls[name] = f"{room.removeprefix('regard.')}.{name}({', '.join(needed)})"
    return calls


def call_meant(given: object, room: str) -> str:
    """A hint where a value was expected and a name, or a constructor that was not called, was given."""
    calls = calls_of(room)
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    near = closest(name.replace("-", "_"), calls)
    if near is not None:
        return f"Did you mean {calls[near]}?"
    return f"There are {', '.join(calls.values())}."


def options_of(cls: type, leading: int) -> dict[str, inspect.Parameter]:
    """The options of a class by name, without self and the `leading` arguments, which are always given.

    Where a constructor passes `**options` on, those of its parent follow.
    """
    return {parameter.name: parameter for parameter in _parameters(cls)[leading:]}


@lru_cache(maxsize=1024)
def _parameters(cls: type) -> tuple[inspect.Parameter, ...]:
    """The parameters of a constructor and of those that it passes its `**options` on to."""
    named: dict[str, inspect.Parameter] = {}
    for parent in cls.__mro__:
        if "__init__" not in parent.__dict__:
            continue
        parameters = list(inspect.signature(parent.__dict__["__init__"]).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                named.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return tuple(named.values())


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
    the option, so words stay text here and are converted by `regard.support.options`.
    """
    if not isinstance(text, str):
        raise BadType(f"name: expected a text such as 'local(window=65)', got {text!r} ({type(text).__name__}).")
    call = _CALL.fullmatch(text)
    options = [_OPTION.fullmatch(assignment) for assignment in split(call[2] or "")] if call else []
    if call is None or not all(options):
        raise _unreadable(text)
    return call[1], {option[1]: _value(option[2], text) for option in options if option}


def written(name: str, options: Mapping[str, Any]) -> str:
    """The text that `parse` reads as this name with these options.

    >>> written("causal", {"window": 4, "positions": "rotary(base=5)", "bias": False})
    'causal(window=4, positions=rotary(base=5), bias=False)'
    """
    assignments = []
    for option, value in options.items():
        bare = f"{option}={value}"
        plain = isinstance(value, str) and _CALL.fullmatch(value) and len(split(value)) == 1
        plain = plain and _value(value, bare) == value
        assignments.append(bare if plain else f"{option}={value!r}")
    return f"{name}({', '.join(assignments)})" if assignments else name


def split(text: str) -> list[str]:
    """The parts of a text between commas outside of brackets and quotes, without blank parts."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and pieces[-1].rstrip()[-1:] in ("", *"=,([{"):  # not that of "it's"
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth = max(0, depth - 1)
        elif letter == "," and depth == 0:
            pieces.append("")
            continue
        pieces[-1] += letter
    return [piece for piece in pieces if piece.strip()]


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
