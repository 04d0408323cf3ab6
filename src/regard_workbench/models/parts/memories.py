"""What `answerer` remembers of a stream: for each hop a key and a value for every position.

`remembers` registers the memory of a kind of stream, so that another kind (the regions of a picture) is one more class.
A story has two: its sentences one by one, here, or after they attended to each other (`related_sentences.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue, unknown_name
from regard_workbench.models.parts.token_rows import WeightedSum
from regard_workbench.tasks.parts.batch import Stream
from regard_workbench.tasks.parts.streams import TokenRows, Tokens

TYINGS = ("adjacent", "layer")
Made = TypeVar("Made", bound="Callable[..., Memory]")
_MEMORIES: dict[type[Any], Callable[..., Memory]] = {}


@dataclass(frozen=True)
class MemoryOptions:
    """What `answerer` is told of how to remember; None: the memory's own default, or nothing to choose."""

    tying: str = "adjacent"
    ordered: bool | Literal["learned"] = True
    dropout: float = 0.0
    layers: int | None = None
    num_heads: int | None = None
    width: int | None = None
    norm: str | None = None

    def __post_init__(self) -> None:
        if self.tying not in TYINGS:
            raise unknown_name("tying", self.tying, TYINGS)

    @property
    def adjacent(self) -> bool:
        """Whether the values of a hop are the keys of the next."""
        return self.tying == "adjacent"

    def refuse_for_sentences(self, *names: str) -> None:
        """Raise for an option that was given although a memory of sentences has no such thing."""
        for name in names:
            if getattr(self, name) is not None:
                raise BadValue(f"{name}: a memory of sentences has none, got {getattr(self, name)}. Leave it out.")

    def sets(self, hops: int) -> int:
        """How many vectors each position has, from which keys and values are taken."""
        return hops + 1 if self.adjacent else 2

    def pairs(self, rows: Tensor, hops: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values for each hop from rows (b,n,sets·dim)."""
        sets = rows.chunk(self.sets(hops), -1)
        return list(itertools.pairwise(sets)) if self.adjacent else [(sets[0], sets[1])] * hops


class Memory(nn.Module):
    """The base of every memory: built from the specifications of what is told and asked, dim, hops and options."""

    reads_question: bool = False  # whether the question's row comes from the memory

    def forward(self, told: Stream, asked: Stream) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Keys (b,n,dim) and values (b,n,dim) for each hop; the question's row (b,dim) where the memory reads it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def answers(self, outputs: int) -> Tensor | None:
        """The vectors of the answers (outputs,dim), where the memory shares its vectors with them."""
        return None


def remembers(spec: type[Any]) -> Callable[[Made], Made]:
    """Register the memory of a kind of stream: a class, or a function that chooses one by the options."""

    def register(made: Made) -> Made:
        _MEMORIES[spec] = made
        return made

    return register


def remembered() -> tuple[type[Any], ...]:
    """The kinds of streams that have a memory."""
    return tuple(_MEMORIES)


def memory_of(told: Any, asked: Tokens, dim: int, hops: int, options: MemoryOptions) -> Memory:
    """The memory of a stream."""
    return _MEMORIES[type(told)](told, asked, dim, hops, options)


class SentenceMemory(Memory):
    """Sentences as sums of word vectors, each with the vector of its age: how many sentences came after it.

    Paper: Sukhbaatar et al. 2015, section 4.1. Tying "adjacent": the values of a hop are the keys of the next, and the
    question is read with the vectors of the first keys, and words are scored as answers by those of the last values
    (section 2.2); "layer": all hops have the same keys and values.
    """

    def __init__(self, spec: TokenRows, asked: Tokens, dim: int, hops: int, options: MemoryOptions) -> None:
        super().__init__()
        options.refuse_for_sentences("width", "norm")
        if not options.layers and options.num_heads is not None:
            raise BadValue(f"num_heads: sentences attend in layers only, got layers={options.layers}. Set layers.")
        self.dim, self.hops, self.options = dim, hops, options
        self.reads_question = options.adjacent
        sets = options.sets(hops)
        self.words = WeightedSum(spec, dim, sets=sets, ordered=options.ordered)
        assert spec.length is not None
        self.ages = nn.Embedding(spec.length, sets * dim)
        nn.init.normal_(self.ages.weight, std=0.1)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, told: Stream, asked: Stream) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        rows = self.words(told.data) + self.ages(ages_of(told))
        pairs = self.options.pairs(self.dropout(rows), self.hops)
        return pairs, self.dropout(self.words(asked.data)[:, : self.dim]) if self.reads_question else None

    def answers(self, outputs: int) -> Tensor | None:
        if not self.options.adjacent or outputs != self.words.table.num_embeddings:
            return None
        return self.words.table.weight[:, -self.dim :]


def ages_of(stream: Stream) -> Tensor:
    """How many real positions follow each one, (b,n); 0 at padding."""
    size, length = stream.data.shape[:2]
    if stream.keep is None:
        return torch.arange(length - 1, -1, -1, device=stream.data.device).expand(size, length)
    after = stream.keep.flip(1).cumsum(1).flip(1) - 1
    return after.clamp(min=0).masked_fill(~stream.keep, 0)
