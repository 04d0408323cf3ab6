"""Options in names (`multihead(causal=false, window=none)`), converted to the types that a constructor declares.

In text, `false` may be a word or a bool; the declared type decides. A value that does not convert is refused with an
error that names the option and what it takes.

>>> converted("causal", "no", bool, "multihead"), converted("window", "none", int | None, "multihead")
(False, None)
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

from regard.errors import BadType, BadValue
from regard.registry import refuse_unknown, split

TRUTH = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_NOTHING = ("none", "null")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "None"}
_PLAIN = (str, bool, int, float, type(None), list, tuple)  # what a file or a command line can express
_SEQUENCES = (collections.abc.Sequence, list, tuple)


class _CannotConvert(Exception):
    """A value that does not convert to a type."""


def read_options(
    owner: str, cls: type, given: Mapping[str, Any], known: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """The options `given` to `owner` as values of the types that `cls` declares.

    Raises for an option that is not `known` and for a value that its option does not take. Objects that text cannot
    express (a normaliser, a module, an array) are passed on unchanged; the class checks them.
    """
    refuse_unknown(owner, given, known)
    declared = _declared(cls)
    read = {}
    for option, value in given.items():
        kind = declared.get(option, Any)
        default = known[option].default
        if kind is Any and isinstance(default, (bool, int, float, str)):
            kind = type(default)
        read[option] = converted(option, value, kind, owner)
    return read


def converted(option: str, given: Any, kind: Any, owner: str) -> Any:
    """`given` as a value of the type `kind`, which `option` of `owner` declares."""
    if not isinstance(given, _PLAIN):
        return given
    try:
        return _convert(given, kind)
    except _CannotConvert:
        expected = f"{option}: {owner} takes {_in_words(kind)}"
    if isinstance(given, str):
        raise BadValue(f"{expected}, got {given!r}.")
    quotes = (
        f" A text that looks like one is written in quotes: {option}={str(given)!r}."
        if str in (kind, *get_args(kind)) and isinstance(given, (bool, int, float))
        else ""
    )
    raise BadType(f"{expected}, got {given!r} ({type(given).__name__}).{quotes}")


def _convert(given: Any, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(given, arguments)
    if origin is Literal:
        if given in arguments:
            return given
        raise _CannotConvert
    if origin in _SEQUENCES or kind in _SEQUENCES:
        return _several(given, origin or kind, arguments)
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(given)
    is_class = isinstance(kind, type) and origin is None and kind is not Any
    if is_class and not getattr(kind, "_is_protocol", False) and not isinstance(given, kind):
        raise _CannotConvert
    return given  # no type, or one that isinstance cannot check: the class checks the value


def _one_of(given: Any, kinds: tuple[Any, ...]) -> Any:
    """The value itself if one of the kinds takes it unchanged, else converted to the first kind that takes it."""
    if bool in kinds and isinstance(given, str) and given.strip().lower() in TRUTH:
        return _flag(given)
    for turned in (False, True):
        for kind in kinds:
            try:
                candidate = _convert(given, kind)
            except _CannotConvert:
                continue
            if turned or (type(candidate) is type(given) and candidate == given):
                return candidate
    raise _CannotConvert


def _several(given: Any, kind: Any, inner: tuple[Any, ...]) -> Any:
    """A list or tuple; a text is split at its commas."""
    if isinstance(given, str):
        given = tuple(element.strip() for element in split(given))
    if not isinstance(given, (list, tuple)):
        raise _CannotConvert
    element_kind = inner[0] if inner else Any
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        if len(inner) != len(given):
            raise _CannotConvert
        return tuple(_convert(element, kind_of_element) for element, kind_of_element in zip(given, inner, strict=True))
    elements = [_convert(element, element_kind) for element in given]
    return elements if kind is list or (kind is not tuple and isinstance(given, list)) else tuple(elements)


def _flag(given: Any) -> bool:
    if isinstance(given, str):
        given = TRUTH.get(given.strip().lower(), given)
    if isinstance(given, (bool, int)) and given in (0, 1):
        return bool(given)
    raise _CannotConvert


def _whole(given: Any) -> int:
    if isinstance(given, str):
        try:
            return int(given)
        except ValueError:
            given = _number(given)  # 1e4
    if isinstance(given, float) and given.is_integer():
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise _CannotConvert


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise _CannotConvert
    if not isinstance(given, str):
        return given  # a whole number stays one: 0 and 0.0 mean the same
    try:
        return float(given)
    except ValueError:
        raise _CannotConvert from None


def _text(given: Any) -> str:
    if isinstance(given, str):
        return given
    raise _CannotConvert


def _nothing(given: Any) -> None:
    if given is not None and not (isinstance(given, str) and given.strip().lower() in _NOTHING):
        raise _CannotConvert


_READERS = {bool: _flag, int: _whole, float: _number, str: _text, type(None): _nothing, None: _nothing}


def _in_words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_in_words(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin in _SEQUENCES or kind in _SEQUENCES:
        argument_kinds = [argument for argument in arguments if argument is not Ellipsis]
        return "a list" + (
            f" ({', '.join(_in_words(argument) for argument in argument_kinds)})" if argument_kinds else ""
        )
    return _WORDS[kind] if kind in _WORDS else str(getattr(kind, "__name__", kind))


@lru_cache(maxsize=1024)
def _declared(cls: type) -> Mapping[str, Any]:
    """The types of a constructor's options by name, those that its parents declare included."""
    kinds: dict[str, Any] = {}
    for parent in reversed(cls.__mro__):
        constructor = parent.__dict__.get("__init__")
        if not inspect.isfunction(constructor):
            continue
        for name, annotation in constructor.__annotations__.items():
            kinds[name] = _resolved(annotation, constructor.__globals__)
        for name, declaration in getattr(constructor, "options", {}).items():
            kinds[name] = _resolved(declaration.annotation, declaration.names)
    return kinds


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """An annotation that was kept as text as the type it names; Any where a name in it cannot be found."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=names)["it"]
    except (NameError, AttributeError, TypeError):
        return Any
