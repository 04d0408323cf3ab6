"""Who needs what of whom: the blocks of a mask, chunk by chunk, decide what is computed and what is sent.

Every rank computes the same table of grades from the mask of the whole sequence, so sender and receiver agree without
asking each other. At step s of the ring, rank r gets keys and values from rank r − s and sends its own to rank r + s:
only chunks of which the receiver sees something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.grid import Sizes
from regard.core.value import rebuild
from regard.masks import EMPTY, FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.parallel.layout import Layout, build, deal

_FINEST = 2048  # blocks on a side of the table that estimates work


class Block(NamedTuple):
    """Chunks of queries × chunks of keys that are computed together."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    full: bool  # every pair is visible


@dataclass(frozen=True)
class Schedule:
    """The grades of all pairs of chunks, (chunks of queries, chunks of keys), int8 on the CPU."""

    rows: Layout
    columns: Layout
    grades: Tensor

    @cached_property
    def needed(self) -> Tensor:
        """Which ranks see something of each chunk of keys, bool (ranks, chunks)."""
        by_rank = [(self.grades[list(held)] != EMPTY).any(0) for held in self.rows.chunks]
        return torch.stack(by_rank)

    def wanted(self, receiver: int, sender: int) -> tuple[int, ...]:
        """The chunks of keys that `sender` holds and `receiver` sees something of."""
        seen = self.needed[receiver]
        return tuple(chunk for chunk in self.columns.chunks[sender] if seen[chunk])

    def blocks(self, rank: int, columns: tuple[int, ...], together: bool = True) -> list[Block]:
        """What a rank computes with these chunks of keys.

        `together`: rows that see all of the same chunks share one call. A chunk that is seen in part is a call of its
        own, as every pair of chunks is where numbers depend on positions.
        """
        alike: dict[tuple[int, ...], list[int]] = {}
        single: list[Block] = []
        for row in self.rows.chunks[rank]:
            grades = {column: int(self.grades[row, column]) for column in columns}
            full = tuple(column for column in columns if grades[column] == FULL)
            if full and together:
                alike.setdefault(full, []).append(row)
            for column in columns:
                if grades[column] == PARTIAL or (grades[column] == FULL and not together):
                    single.append(Block((row,), (column,), grades[column] == FULL))
        return [*(Block(tuple(rows), full, True) for full, rows in alike.items()), *single]

    def keys_received(self) -> Tensor:
        """The number of keys that each rank gets from others in a forward pass, int64 (ranks,)."""
        return self._foreign().sum(1)

    def keys_sent(self) -> Tensor:
        """The number of keys that each rank sends, each counted once for each receiver, int64 (ranks,)."""
        each = self._foreign().sum(0)
        return torch.stack([each[list(held)].sum() for held in self.columns.chunks])

    def _foreign(self) -> Tensor:
        widths = torch.tensor([self.columns.width(chunk) for chunk in range(self.columns.count)])
        found = self.needed * widths
        for rank, held in enumerate(self.columns.chunks):
            found[rank, list(held)] = 0
        return found


def make(mask: Mask | None, sizes: Sizes, rows: Layout, columns: Layout) -> Schedule:
    """The schedule of a mask over the whole sequence. Tensors on a GPU are not read: what they hide is not skipped."""
    if mask is None or not mask.tensors:
        return _without_tensors(None if mask is None else mask.spec, sizes, rows, columns)
    return Schedule(rows, columns, _grades(mask, sizes, rows.size, columns.size, (rows.count, columns.count)))


@lru_cache(maxsize=64)
def _without_tensors(spec: str | None, sizes: Sizes, rows: Layout, columns: Layout) -> Schedule:
    mask = None if spec is None else rebuild(spec, ())
    assert mask is None or isinstance(mask, Mask)
    return Schedule(rows, columns, _grades(mask, sizes, rows.size, columns.size, (rows.count, columns.count)))


def _grades(mask: Mask | None, sizes: Sizes, block_q: int, block_k: int, counts: tuple[int, int]) -> Tensor:
    """Grades that hold for every batch entry and head; chunks beyond the end are empty."""
    complete = torch.zeros(counts, dtype=torch.int8)
    on_cpu = mask is None or all(tensor.device.type == "cpu" for tensor in mask.tensors)
    blocks = cut(sizes, block_q, block_k, "cpu", read_tensors=on_cpu)
    shape = (len(blocks.first_row), len(blocks.first_column))
    if mask is None:
        complete[: shape[0], : shape[1]] = FULL
        return complete
    found = mask.grades(blocks).to("cpu")
    lowest, highest = found.amin((0, 1)), found.amax((0, 1))
    joined = torch.where(lowest == FULL, FULL, torch.where(highest == EMPTY, EMPTY, PARTIAL))
    complete[: shape[0], : shape[1]] = joined.to(torch.int8)
    return complete


def estimated_work(mask: Mask | None, sizes: Sizes, chunks: int) -> Tensor:
    """About how many pairs the queries of each chunk compute, float64 (chunks,): partly visible blocks count half."""
    size = -(-sizes[2] // chunks)
    parts = max(1, min(8, _FINEST // chunks, size))
    block = -(-size // parts)
    finer = -(-sizes[2] // block), -(-sizes[3] // block)
    work = _grades(mask, sizes, block, block, finer).sum(1, dtype=torch.float64) * (block * block / 2)
    per_chunk = torch.zeros(chunks, dtype=torch.float64)
    return per_chunk.index_add_(0, (torch.arange(finer[0]) * block // size).clamp(max=chunks - 1), work)


def choose(kind: str, length: int, ranks: int, mask: Mask | None = None, batch: int = 1, heads: int = 1) -> Layout:
    """The layout of a name; `balanced` takes the one that a mask over the whole sequence suggests.

    Dealing the chunks out by their work, from the most to the least and back and forth over the ranks, gives zig-zag
    for a causal mask. Where contiguous chunks are as balanced (windows, no mask), they are taken: they are sent less.
    """
    if kind != "balanced":
        return build(kind, length, ranks)
    sizes = (batch, heads, length, length)
    work = estimated_work(mask, sizes, 2 * ranks)
    order = work.argsort(descending=True, stable=True).tolist()
    rounds = (order[:ranks], order[ranks:][::-1])
    dealt = deal(length, [list(hand) for hand in zip(*rounds, strict=True)])
    even, plain = _heaviest(dealt, work), build("contiguous", length, ranks)
    halves = Layout(length, dealt.size, tuple((2 * rank, 2 * rank + 1) for rank in range(ranks)))
    return plain if _heaviest(halves, work) <= 1.1 * even else dealt


def _heaviest(layout: Layout, work: Tensor) -> float:
    return max(float(work[list(held)].sum()) for held in layout.chunks)
