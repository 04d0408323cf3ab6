"""Which rank holds which positions of a long sequence.

A sequence is cut into chunks of one size (the last ones may be shorter or empty), and each rank holds some of them.
Under a causal mask the last chunks are the most work. *Zig-zag* gives rank r of R the chunks r and 2R − 1 − r of 2R,
so that all ranks compute the same number of pairs. *Contiguous* gives it one chunk, which is balanced for windows and
leaves only neighbours to talk to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.support.arguments import whole_number

KINDS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Layout:
    """Positions 0 … length − 1 in chunks of `size`, and the chunks of each rank."""

    length: int
    size: int
    chunks: tuple[tuple[int, ...], ...]  # by rank, ascending

    @property
    def ranks(self) -> int:
        """How many ranks share the sequence."""
        return len(self.chunks)

    @property
    def count(self) -> int:
        """How many chunks there are, empty ones included."""
        return sum(map(len, self.chunks))

    def span(self, chunk: int) -> slice:
        """The positions of a chunk."""
        return slice(min(self.length, chunk * self.size), min(self.length, (chunk + 1) * self.size))

    def width(self, chunk: int) -> int:
        """The number of positions of a chunk."""
        span = self.span(chunk)
        return int(span.stop - span.start)

    def local_spans(self, rank: int) -> list[slice]:
        """Where each chunk of a rank begins and ends among the positions that the rank holds."""
        ends = [0]
        for chunk in self.chunks[rank]:
            ends.append(ends[-1] + self.width(chunk))
        return [slice(first, last) for first, last in pairwise(ends)]

    def local_length(self, rank: int) -> int:
        """The number of positions that a rank holds."""
        return sum(self.width(chunk) for chunk in self.chunks[rank])

    @cached_property
    def owner(self) -> dict[int, int]:
        """The rank that holds each chunk."""
        return {chunk: rank for rank, chunks in enumerate(self.chunks) for chunk in chunks}

    def positions(self, rank: int, device: torch.device | str = "cpu") -> Tensor:
        """The positions that a rank holds, in the order in which it holds them, (n,)."""
        spans = [self.span(chunk) for chunk in self.chunks[rank]]
        return torch.cat([torch.arange(span.start, span.stop, device=device) for span in spans])

    def take(self, whole: Tensor, axis: int, rank: int) -> Tensor:
        """The part of a whole tensor that a rank holds along `axis`."""
        spans = [self.span(chunk) for chunk in self.chunks[rank]]
        return torch.cat([whole.narrow(axis, span.start, span.stop - span.start) for span in spans], axis)

    def join(self, parts: list[Tensor], axis: int) -> Tensor:
        """The whole tensor from the parts of all ranks: the reverse of `take`."""
        pieces: dict[int, Tensor] = {}
        for rank, local in enumerate(parts):
            for chunk, span in zip(self.chunks[rank], self.local_spans(rank), strict=True):
                pieces[chunk] = local.narrow(axis, span.start, span.stop - span.start)
        return torch.cat([pieces[chunk] for chunk in range(self.count)], axis)


def build(kind: str, length: int, ranks: int) -> Layout:
    """The layout of that name: contiguous or zigzag."""
    length, ranks = whole_number("length", length, 1), whole_number("ranks", ranks, 1)
    if kind == "contiguous":
        return deal(length, [[rank] for rank in range(ranks)])
    if kind == "zigzag":
        return deal(length, [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)])
    raise unknown_name("layout", kind, (*KINDS, "balanced"))


def deal(length: int, hands: list[list[int]]) -> Layout:
    """The layout in which each rank holds the chunks of its hand; together the hands hold every chunk once."""
    count = sum(map(len, hands))
    if sorted(chunk for hand in hands for chunk in hand) != list(range(count)):
        raise BadValue(f"layout: expected every chunk from 0 to {count - 1} in one hand, got {hands}.")
    return Layout(length, max(1, -(-length // count)), tuple(tuple(sorted(hand)) for hand in hands))
