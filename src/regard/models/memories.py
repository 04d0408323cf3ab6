"""What `answerer` remembers of a stream: for each hop a key and a value for every position.

`remembers` registers the memory of a kind of stream, so that another kind (the regions of a picture) is one more class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import unknown_name
from regard.models.token_rows import WeightedSum
from regard.tasks.batch import Stream
from regard.tasks.streams import TokenRows

TYINGS = ("adjacent", "layer")
_MEMORIES: dict[type[Any], Callable[..., Memory]] = {}


class Memory(nn.Module):
    """The base of every memory."""

    def forward(self, stream: Stream) -> list[tuple[Tensor, Tensor]]:
        """Keys (b,n,dim) and values (b,n,dim) for each hop."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def shared(self, ids: Tensor) -> Tensor | None:
        """A question's words (b,n) as a row (b,dim), where the memory shares its vectors with the question."""
        return None

    def answers(self, outputs: int) -> Tensor | None:
        """The vectors of the answers (outputs,dim), where the memory shares its vectors with them."""
        return None


def remembers(spec: type[Any]) -> Callable[[type[Memory]], type[Memory]]:
    """Register the memory of a kind of stream: a class built from (specification, dim, hops, options)."""

    def register(made: type[Memory]) -> type[Memory]:
        _MEMORIES[spec] = made
        return made

    return register


def remembered() -> tuple[type[Any], ...]:
    """The kinds of streams that have a memory."""
    return tuple(_MEMORIES)


def memory_of(spec: Any, dim: int, hops: int, **options: Any) -> Memory:
    """The memory of a stream."""
    return _MEMORIES[type(spec)](spec, dim, hops, **options)


@remembers(TokenRows)
class SentenceMemory(Memory):
    """Sentences as sums of word vectors, each with the vector of its age: how many sentences came after it.

    Paper: Sukhbaatar et al. 2015, section 4.1. Tying "adjacent": the values of a hop are the keys of the next, and the
    question is read with the vectors of the first keys, and words are scored as answers by those of the last values
    (section 2.2); "layer": all hops have the same keys and values.
    """

    def __init__(
        self,
        spec: TokenRows,
        dim: int,
        hops: int,
        *,
        tying: str = "adjacent",
        ordered: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if tying not in TYINGS:
            raise unknown_name("tying", tying, TYINGS)
        self.dim, self.hops, self.adjacent = dim, hops, tying == "adjacent"
        sets = hops + 1 if self.adjacent else 2
        self.words = WeightedSum(spec, dim, sets=sets, ordered=ordered)
        assert spec.length is not None
        self.ages = nn.Embedding(spec.length, sets * dim)
        nn.init.normal_(self.ages.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Stream) -> list[tuple[Tensor, Tensor]]:
        rows = self.words(stream.data) + self.ages(_ages(stream))
        found = self.dropout(rows).split(self.dim, -1)
        if not self.adjacent:
            return [(found[0], found[1])] * self.hops
        return list(itertools.pairwise(found))

    def shared(self, ids: Tensor) -> Tensor | None:
        return self.dropout(self.words(ids)[:, : self.dim]) if self.adjacent else None

    def answers(self, outputs: int) -> Tensor | None:
        if not self.adjacent or outputs != self.words.table.num_embeddings:
            return None
        return self.words.table.weight[:, -self.dim :]


def _ages(stream: Stream) -> Tensor:
    """How many real positions follow each one, (b,n); 0 at padding."""
    size, length = stream.data.shape[:2]
    if stream.keep is None:
        return torch.arange(length - 1, -1, -1, device=stream.data.device).expand(size, length)
    after = stream.keep.flip(1).cumsum(1).flip(1) - 1
    return after.clamp(min=0).masked_fill(~stream.keep, 0)
