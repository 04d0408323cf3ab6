"""The errors that users see.

Every one derives from `RegardError`, and also from the built-in error Python itself would raise, so that both
`except regard.RegardError` and `except ValueError` work. A message names the argument, what was given, what was
expected and what to try.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

CLOSE = 0.6  # how alike two words must be for one to be suggested; at 0.5 "nosuch" would mean "speech"


class RegardError(Exception):
    """The base class of every error that regard raises on purpose."""


class BadValue(RegardError, ValueError):
    """An argument of the right type with an invalid content: a shape, a number, a name."""


class BadType(RegardError, TypeError):
    """An argument of the wrong type: a dtype, a class."""


class Frozen(RegardError, AttributeError):
    """An attempt to change a value (a mask, score, bias or normaliser), which is immutable."""


class Unsupported(RegardError, NotImplementedError):
    """The implementation named by `impl` cannot run this request; the message says why."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one most likely means; None where none is close."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=CLOSE)
    return near[0] if near else None


def unknown_name(kind: str, name: object, known: Iterable[str], calls: Mapping[str, str] | None = None) -> BadValue:
    """An error for an unknown name, with the nearest known one as a suggestion.

    `calls`: names that need arguments and so cannot be given as a name, with the call to write instead.
    """
    known, calls = sorted(known), calls or {}
    near = closest(str(name), [*known, *calls])
    meant = "" if near is None else calls[near] if near not in known else repr(near)
    suggestion = f" Did you mean {meant}?" if meant else ""
    constructors = f" To build, with what they need: {', '.join(calls.values())}." if calls and not meant else ""
    return BadValue(f"{kind}: there is no {name!r}.{suggestion} Known: {', '.join(known)}.{constructors}")
