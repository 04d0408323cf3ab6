"""Stream specifications: what each position of a stream holds, so that a model can build its embedding.

A new kind of stream is a frozen dataclass like these; `regard.models.embedding.embeds` says how models read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


class StreamSpec(Protocol):
    """The interface of every stream specification."""

    words: ClassVar[str]  # what its positions hold

    @property
    def length(self) -> int | None:
        """The most positions; None where no limit is known."""


@dataclass(frozen=True)
class Tokens:
    """Positions that hold one of `count` ids; `padding` is the id where there is none."""

    count: int
    padding: int = 0
    length: int | None = None  # the longest sequence; None: no limit is known
    words: ClassVar[str] = "tokens"


@dataclass(frozen=True)
class TokenRows:
    """Positions that hold up to `width` of `count` ids each, then `padding`: letters of a word, words of a sentence."""

    count: int
    width: int
    padding: int = 0
    length: int | None = None
    words: ClassVar[str] = "rows of tokens"


@dataclass(frozen=True)
class Vectors:
    """Positions that hold `width` numbers: rows of an image, bits, frames of sound."""

    width: int
    length: int | None = None
    words: ClassVar[str] = "vectors"


@dataclass(frozen=True)
class Nodes:
    """Nodes of a graph that hold `width` numbers each; a node attends to itself and along the stream's `edges`."""

    width: int
    length: int | None = None
    words: ClassVar[str] = "nodes of a graph"
