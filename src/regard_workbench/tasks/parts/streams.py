"""Stream specifications: what each position of a stream holds, so that a model can build its embedding.

A new kind of stream is a frozen dataclass like these; `embeds` of `regard_workbench.models.parts.embedding` says how
models read it. Where that stands in a module of its own, `embedder` names the module, which is imported when a model
first reads such a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from regard.errors import BadValue


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
    embedder: ClassVar[str] = "regard_workbench.models.parts.token_rows"


@dataclass(frozen=True)
class Vectors:
    """Positions that hold `width` numbers: rows of an image, bits, frames of sound."""

    width: int
    length: int | None = None
    words: ClassVar[str] = "vectors"


@dataclass(frozen=True)
class Frames(Vectors):
    """Positions that hold some frames of a spectrogram, one after the other, `bands` numbers each."""

    bands: int = 40
    words: ClassVar[str] = "frames of sound"
    embedder: ClassVar[str] = "regard_workbench.models.parts.sound_embedding"


@dataclass(frozen=True)
class Patches(Vectors):
    """Positions that hold square patches of a picture, row by row: `channels` · `side` · `side` numbers each.

    `frames`: of a video, whose patches follow each other frame by frame. `mean`, `spread`: one for each channel, where
    the numbers are (pixel − mean) / spread; empty: they are the pixels, from 0 to 1.
    """

    rows: int = 1  # patches from top to bottom
    columns: int = 1  # patches from left to right
    side: int = 1  # pixels of a patch's side
    channels: int = 1
    frames: int = 1
    mean: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    words: ClassVar[str] = "patches of a picture"

    @classmethod
    def of(
        cls,
        channels: int,
        height: int,
        width: int,
        side: int,
        frames: int = 1,
        mean: tuple[float, ...] = (),
        spread: tuple[float, ...] = (),
    ) -> Patches:
        """The patches of pictures of one size; refused where the side does not divide height and width."""
        if side < 1 or height % side or width % side:
            raise BadValue(f"patch: expected a side that divides the picture's {height} × {width} pixels, got {side}.")
        rows, columns = height // side, width // side
        count = frames * rows * columns
        return cls(channels * side * side, count, rows, columns, side, channels, frames, mean, spread)


@dataclass(frozen=True)
class Nodes:
    """Nodes of a graph that hold `width` numbers each; a node attends to itself and along the stream's `edges`."""

    width: int
    length: int | None = None
    words: ClassVar[str] = "nodes of a graph"


@dataclass(frozen=True)
class Spelled:
    """Words with their speaker and spelling: each position holds the id of a word (below `count`), that of who says it
    (below `speakers`) and those of its character n-grams (below `grams`; 0 where there are no more)."""

    count: int
    speakers: int
    grams: int
    padding: int = 0
    length: int | None = None
    words: ClassVar[str] = "spelled words"
    embedder: ClassVar[str] = "regard_workbench.models.tracker"


@dataclass(frozen=True)
class TextSets:
    """Several texts side by side, each of spelled words: (b,texts,n,columns), with `keep` (b,texts,n)."""

    of: Spelled
    words: ClassVar[str] = "several texts"

    @property
    def length(self) -> int | None:
        """The most words of one text."""
        return self.of.length
