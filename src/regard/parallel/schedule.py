"""Who needs what of whom: the blocks of a mask, chunk by chunk, decide what is computed and what is sent.

Every rank computes the same table of grades from the mask of the whole sequence, so sender and receiver agree without
asking each other. At step s of the ring, rank r gets keys and values from rank r − s and sends its own to rank r + s:
only chunks of which the receiver sees something, and of those only from the first key to the last that it sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.masks import EMPTY, FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.parallel.layout import Layout, build, deal
from regard.parallel.sections import Section, of_mask
from regard.values.grid import Sizes
from regard.values.value import rebuild

_FINEST = 2048  # blocks on a side of the table that estimates work
_PARTS = 64  # blocks in which the ends of a piece are searched, twice
_MOST_CUTS = 4  # for each chunk: how many ranks may get a piece of it


class Piece(NamedTuple):
    """The keys of a chunk that a rank sees something of: positions first … last − 1 of the whole sequence."""

    chunk: int
    first: int
    last: int

    @property
    def width(self) -> int:
        """The number of keys."""
        return self.last - self.first

    @property
    def span(self) -> slice:
        """The positions of the keys."""
        return slice(self.first, self.last)


class RingBlock(NamedTuple):
    """Chunks of queries × pieces of keys that are computed together."""

    rows: tuple[int, ...]
    columns: tuple[Piece, ...]
    full: bool  # every pair is visible


@dataclass(frozen=True, eq=False)
class Schedule:
    """The grades of all pairs of chunks, (chunks of queries, chunks of keys), int8 on the CPU."""

    mask: Mask | None
    sizes: Sizes
    rows: Layout
    columns: Layout
    grades: Tensor
    _pieces: dict[tuple[int, int], Piece] = field(default_factory=dict)
    _ranges: dict[tuple[int, int, int], slice] = field(default_factory=dict)

    @cached_property
    def needed(self) -> Tensor:
        """Which ranks see something of each chunk of keys, bool (ranks, chunks)."""
        by_rank = [(self.grades[list(chunks)] != EMPTY).any(0) for chunks in self.rows.chunks]
        return torch.stack(by_rank)

    @cached_property
    def _cut_short(self) -> Tensor:
        """Which chunks are cut to what a rank sees of them, bool (ranks, chunks): those of others, nowhere full.

        Where they are many (a mask that hides a little of everything), all are sent whole.
        """
        cut_short = self.needed & ~torch.stack(
            [(self.grades[list(chunks)] == FULL).any(0) for chunks in self.rows.chunks]
        )
        for rank, chunks in enumerate(self.columns.chunks):
            cut_short[rank, list(chunks)] = False
        return cut_short if int(cut_short.sum()) <= _MOST_CUTS * self.columns.count else torch.zeros_like(cut_short)

    def wanted(self, receiver: int, sender: int) -> tuple[Piece, ...]:
        """What `receiver` sees of the chunks of keys that `sender` holds."""
        chunks = [chunk for chunk in self.columns.chunks[sender] if self.needed[receiver, chunk]]
        return tuple(piece for chunk in chunks if (piece := self._piece(receiver, chunk)).width)

    def _piece(self, receiver: int, chunk: int) -> Piece:
        span = self.columns.span(chunk)
        if not self._cut_short[receiver, chunk]:
            return Piece(chunk, span.start, span.stop)
        if (receiver, chunk) not in self._pieces:
            rows = [row for row in self.rows.chunks[receiver] if self.grades[row, chunk] != EMPTY]
            visible_spans = [self._visible(self.rows.span(row), span) for row in rows]
            visible_spans = [
                columns_seen for columns_seen in visible_spans if columns_seen.stop > columns_seen.start
            ] or [slice(span.start, span.start)]
            piece = Piece(
                chunk,
                min(columns_seen.start for columns_seen in visible_spans),
                max(columns_seen.stop for columns_seen in visible_spans),
            )
            self._pieces[receiver, chunk] = piece
        return self._pieces[receiver, chunk]

    def _visible(self, rows: slice, columns: slice) -> slice:
        """What queries see of a chunk of keys. For a mask of distances, found once for each distance of the two."""
        assert self.mask is not None
        if not self.mask.by_distance:
            return _visible_range(self.mask, self.sizes, rows, columns)
        key = (columns.start - rows.start, rows.stop - rows.start, columns.stop - columns.start)
        if key not in self._ranges:
            visible = _visible_range(self.mask, self.sizes, rows, columns)
            self._ranges[key] = slice(visible.start - columns.start, visible.stop - columns.start)
        visible = self._ranges[key]
        return slice(columns.start + visible.start, columns.start + visible.stop)

    def blocks(self, rank: int, columns: tuple[Piece, ...], together: bool = True) -> list[RingBlock]:
        """What a rank computes with these pieces of keys.

        `together`: rows that see all of the same chunks share one call. A chunk that is seen in part is a call of its
        own, as every pair of chunks is where numbers depend on positions.
        """
        alike: dict[tuple[Piece, ...], list[int]] = {}
        single: list[RingBlock] = []
        for row in self.rows.chunks[rank]:
            grades = {piece: int(self.grades[row, piece.chunk]) for piece in columns}
            full = tuple(piece for piece in columns if grades[piece] == FULL)
            if full and together:
                alike.setdefault(full, []).append(row)
            for piece in columns:
                if grades[piece] == PARTIAL or (grades[piece] == FULL and not together):
                    single.append(RingBlock((row,), (piece,), grades[piece] == FULL))
        return [*(RingBlock(tuple(rows), full, True) for full, rows in alike.items()), *single]

    def keys_received(self) -> Tensor:
        """The number of keys that each rank gets from others in a forward pass, int64 (ranks,)."""
        return self._foreign.sum(1)

    def keys_sent(self) -> Tensor:
        """The number of keys that each rank sends, each counted once for each receiver, int64 (ranks,)."""
        sent = self._foreign.sum(0)
        return torch.stack([sent[list(chunks)].sum() for chunks in self.columns.chunks])

    @cached_property
    def _foreign(self) -> Tensor:
        """How many keys of each chunk of others each rank gets, int64 (ranks, chunks)."""
        widths = torch.tensor([self.columns.width(chunk) for chunk in range(self.columns.count)])
        received = self.needed * widths
        for rank, chunks in enumerate(self.columns.chunks):
            received[rank, list(chunks)] = 0
        for rank, chunk in self._cut_short.nonzero().tolist():
            received[rank, chunk] = self._piece(rank, chunk).width
        return received


def make(mask: Mask | None, sizes: Sizes, rows: Layout, columns: Layout) -> Schedule:
    """The schedule of a mask over the whole sequence. Tensors on a GPU are not read: what they hide is not skipped."""
    if mask is None or not mask.tensors:
        return _without_tensors(None if mask is None else mask.spec, sizes, rows, columns)
    return _make(mask, sizes, rows, columns)


@lru_cache(maxsize=64)
def _without_tensors(spec: str | None, sizes: Sizes, rows: Layout, columns: Layout) -> Schedule:
    mask = None if spec is None else rebuild(spec, ())
    assert mask is None or isinstance(mask, Mask)
    return _make(mask, sizes, rows, columns)


def _make(mask: Mask | None, sizes: Sizes, rows: Layout, columns: Layout) -> Schedule:
    padded = torch.zeros(rows.count, columns.count, dtype=torch.int8)  # chunks beyond the end are empty
    grades = _grades(mask, sizes, rows.size, columns.size)
    padded[: grades.shape[0], : grades.shape[1]] = grades
    return Schedule(mask, sizes, rows, columns, padded)


def _grades(mask: Mask | None, sizes: Sizes, block_q: int, block_k: int) -> Tensor:
    """Grades that hold for every batch entry and head, int8 (blocks of queries, blocks of keys)."""
    on_cpu = mask is None or all(tensor.device.type == "cpu" for tensor in mask.tensors)
    blocks = cut(sizes, block_q, block_k, "cpu", read_tensors=on_cpu)
    if mask is None:
        return torch.full((len(blocks.first_row), len(blocks.first_column)), FULL, dtype=torch.int8)
    grades = mask.grades(blocks).to("cpu")
    lowest, highest = grades.amin((0, 1)), grades.amax((0, 1))
    return torch.where(lowest == FULL, FULL, torch.where(highest == EMPTY, EMPTY, PARTIAL)).to(torch.int8)


def _visible_range(mask: Mask, sizes: Sizes, rows: slice, columns: slice) -> slice:
    """A range of `columns` that holds all keys that the queries `rows` see, exact to 1/64² of them."""
    blocks_seen = _seen(mask, sizes, rows, columns)
    if not blocks_seen:
        return slice(columns.start, columns.start)
    first, last = _seen(mask, sizes, rows, blocks_seen[0]), _seen(mask, sizes, rows, blocks_seen[-1])
    return slice((first or blocks_seen)[0].start, (last or blocks_seen)[-1].stop)


def _seen(mask: Mask, sizes: Sizes, rows: slice, columns: slice) -> list[slice]:
    """The first and the last of 64 blocks of `columns` of which the queries `rows` see something."""
    queries, width = rows.stop - rows.start, columns.stop - columns.start
    if not queries or not width:
        return []
    block = -(-width // _PARTS)
    section = of_mask(mask, Section.of(sizes, rows, columns), torch.device("cpu"))
    visible_blocks = (
        (_grades(section, (*sizes[:2], queries, width), queries, block)[0] != EMPTY).nonzero().view(-1).tolist()
    )
    starts = (
        [columns.start + index * block for index in (visible_blocks[0], visible_blocks[-1])] if visible_blocks else []
    )
    return [slice(start, min(columns.stop, start + block)) for start in starts]


def estimated_work(mask: Mask | None, sizes: Sizes, chunks: int) -> Tensor:
    """About how many pairs the queries of each chunk compute, float64 (chunks,): partly visible blocks count half."""
    size = -(-sizes[2] // chunks)
    block_count = max(1, min(8, _FINEST // chunks, size))
    block = -(-size // block_count)
    finer = -(-sizes[2] // block), -(-sizes[3] // block)
    work = _grades(mask, sizes, block, block).sum(1, dtype=torch.float64) * (block * block / 2)
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
    return max(float(work[list(chunks)].sum()) for chunks in layout.chunks)
