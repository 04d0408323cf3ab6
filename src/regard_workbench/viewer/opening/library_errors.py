"""Errors of libraries that read untrusted folders, turned into one-line messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from regard.errors import BadValue, RegardError

LONGEST = 200  # characters of a library's message
PANIC = "PanicException"  # raised by Rust libraries (tokenizers, safetensors); derives from BaseException

Found = TypeVar("Found")


def in_words(work: Callable[[], Found], words: str) -> Found:
    """The result of `work`. An error in it becomes a `BadValue` with `words`, its type and its first line."""
    try:
        return work()
    except (RegardError, MemoryError):
        raise
    except BaseException as trouble:
        if not isinstance(trouble, Exception) and type(trouble).__name__ != PANIC:
            raise
        raise BadValue(f"RUN: {words}: {first_line(trouble)}") from None


def first_line(trouble: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = str(trouble).strip().splitlines()
    return f"{type(trouble).__name__}: {lines[0][:LONGEST]}" if lines else type(trouble).__name__
