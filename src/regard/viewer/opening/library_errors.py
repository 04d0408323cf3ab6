"""Work on folders nobody vouches for: whatever goes wrong in a library that reads them becomes one line of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from regard.errors import BadValue, RegardError

LONGEST = 200  # letters of a library's message
PANIC = "PanicException"  # of libraries in Rust (tokenizers, safetensors); it derives from BaseException

Found = TypeVar("Found")


def in_words(work: Callable[[], Found], words: str) -> Found:
    """What the work returns. An error in it becomes `BadValue`: the words, its kind and the first line it says."""
    try:
        return work()
    except (RegardError, MemoryError):
        raise
    except BaseException as trouble:
        if not isinstance(trouble, Exception) and type(trouble).__name__ != PANIC:
            raise
        raise BadValue(f"RUN: {words}: {first_line(trouble)}") from None


def first_line(trouble: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(trouble).strip().splitlines()
    return f"{type(trouble).__name__}: {lines[0][:LONGEST]}" if lines else type(trouble).__name__
