"""Readers of settings: each turns the value of a file or a flag into a typed value, or raises what it expected."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from regard.errors import BadValue, closest
from regard.registry import split
from regard.support.options import TRUTH

Reader = Callable[[object], Any]
LARGEST = 2**63 - 1  # the largest int64, and the largest seed of torch


class Expected(Exception):
    """Describes the value that a reader expected."""


def whole(least: int) -> Reader:
    """A whole number from `least` to 2⁶³ − 1; `1e4` is accepted."""

    def read(given: object) -> int:
        wanted = Expected(f"a whole number of at least {least}")
        value = _float(given, wanted)
        if not math.isfinite(value) or value != int(value) or value < least:
            raise wanted
        number = int(str(given)) if str(given).lstrip("+-").isdecimal() else int(value)
        if number > LARGEST:
            raise Expected(f"a whole number from {least} to {LARGEST}")
        return number

    return read


def number(least: float | None = None, above: float | None = None, below: float | None = None) -> Reader:
    """A finite number within bounds."""
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("of at least", least), ("above", above), ("below", below))
        if bound is not None
    ]

    def read(given: object) -> float:
        wanted = Expected(" ".join(["a finite number", " and ".join(bounds)]).strip())
        amount = _float(given, wanted)
        fits = (least is None or amount >= least) and (above is None or amount > above)
        if not math.isfinite(amount) or not fits or (below is not None and amount >= below):
            raise wanted
        return amount

    return read


def text(given: object) -> str:
    """Any text that is not blank."""
    if isinstance(given, (bool, int, float)):  # a file may hold `name: 12`
        return str(given)
    if not isinstance(given, str) or not given.strip():
        raise Expected("some text")
    return given


def one_of(*choices: str) -> Reader:
    """One of several choices."""

    def read(given: object) -> str:
        if str(given) not in choices:
            near = closest(str(given), choices)
            raise Expected(f"one of {', '.join(choices)}" + ("" if near is None else f" (Did you mean {near!r}?)"))
        return str(given)

    return read


def some_of(*choices: str) -> Reader:
    """Some of these names, joined by commas, each of them once."""

    def read(given: object) -> str:
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else [""]
        if not all(name in choices for name in names):
            raise Expected(f"some of {', '.join(choices)}, joined by commas")
        return ",".join(dict.fromkeys(names))

    return read


def flag(given: object) -> bool:
    """True or false."""
    if isinstance(given, bool):
        return given
    if str(given).lower() not in TRUTH:
        raise Expected("true or false")
    return TRUTH[str(given).lower()]


def texts(given: object) -> tuple[str, ...]:
    """Texts split at commas outside brackets and quotes, or a list of texts."""
    pieces = list(given) if isinstance(given, (list, tuple)) else [piece.strip() for piece in split(text(given))]
    return tuple(text(piece) for piece in pieces)


def paths(given: object) -> tuple[str, ...]:
    """Paths joined by commas, unless the text is one path; made absolute, so that a run can resume from any folder."""
    is_path = isinstance(given, str) and _exists(given)
    names = (str(given),) if is_path else texts(given)
    if isinstance(given, str) and not names:
        raise Expected("a path, or several joined by commas")
    return tuple(os.path.abspath(name) if _exists(name) else name for name in names)


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a NUL character
        return False


def betas(given: object) -> tuple[float, float]:
    """The two betas of Adam."""
    wanted = Expected("two numbers of at least 0 and below 1, for instance 0.9,0.98")
    numbers = list(given) if isinstance(given, (list, tuple)) else split(str(given))
    if len(numbers) != 2:
        raise wanted
    first, second = (_float(number_text, wanted) for number_text in numbers)
    if not (0 <= first < 1 and 0 <= second < 1):
        raise wanted
    return first, second


def optional(reader: Reader) -> Reader:
    """A value for the reader, or None."""
    return lambda given: None if given is None or given == "null" else reader(given)


def normalised(parse: Callable[[object], object], wanted: str) -> Reader:
    """What `parse` makes of a value, as text: the same text for the same meaning."""

    def read(given: object) -> str:
        try:
            return str(parse(given))
        except BadValue:
            raise Expected(wanted) from None

    return read


def _float(given: object, wanted: Expected) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise wanted
    try:
        return float(given)  # YAML reads 3e-4 as text
    except (ValueError, OverflowError):
        raise wanted from None
