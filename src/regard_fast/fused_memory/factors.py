"""What the backward kernels of memories, and of the rows around them, keep for the gradients of weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from torch import Tensor

from regard.implementations.triton.launch import block_sizes
from regard_fast.fused_memory.layout import ALL_SLOTS, BOTH, BOTH_TOTALS, ROW_TOTALS, ROWS, MemorySizes, StaticSizes
from regard_fast.fused_rows import op as rows_op
from regard_fast.fused_rows.layout import Stages, sizes, table_of
from regard_fast.fused_rows.short_attention import triton_dtype

Memory = MemorySizes | StaticSizes
Piece = Stages | Memory
# Weights of a memory that the maps of rows before it have, too: its number, and that among norm and maps of the rows.
Borrowed = Mapping[int, int]
NOTHING_BORROWED: Borrowed = MappingProxyType({})


class SlotFactors:
    """Factors and sums of the memories of one layer or of several, side by side."""

    def __init__(self, pieces: Sequence[Memory], memory: Tensor, like: Tensor) -> None:
        """`memory` is that of a layer; factors get the dtype of `like`, sums that of the memory.

        That of a dynamic memory is (segments,b,directions,slots,dim), that of a static one (b,slots,dim).
        """
        self.pieces = tuple(pieces)
        if memory.dim() == 5:
            segments, batch, directions, slots, _ = memory.shape
            self.programs = batch * directions
            self.lines, self.written = (turns * self.programs * slots for turns in (segments, segments - 1))
        else:
            self.programs = memory.shape[0]
            self.lines = self.written = self.programs * memory.shape[1]
        self.pitch, self.vectors = (sum(getattr(piece, name) for piece in pieces) for name in ("pitch", "vectors"))
        self.kept = like.new_empty((self.lines, self.pitch))
        self.sums = memory.new_empty((self.programs, self.vectors))

    def of(self, number: int) -> tuple[Tensor, Tensor]:
        """Where one of the layers writes its factors and sums."""
        return rows_op.behind(self.pieces[:number], self.kept, self.sums)

    def weight_gradients(
        self,
        into: Tensor,
        order: tuple[Piece, ...],
        rows: rows_op.Factors | None = None,
        borrowed: Borrowed = NOTHING_BORROWED,
    ) -> None:
        """The gradients of all weights, of memories and of rows, in this order; those borrowed are there once."""
        from regard_fast.fused_memory.gradient_kernels import memory_gradients

        dim, tuning = self.pieces[0].dim, rows_op.TUNING
        tall, width = min(tuning.grad_tall, dim), min(tuning.grad_width, dim)
        key = (order, tuple(borrowed.items()), tall, width)
        table = table_of(key, lambda: all_jobs(order, borrowed, tall, width), into.device)
        launch = {} if block_sizes.INTERPRETED else {"num_warps": rows_op.TUNING.grad_warps}
        kept, sums = (self.kept, self.sums) if rows is None else (rows.kept, rows.sums)
        memory_gradients[(len(table),)](
            self.kept, self.sums, kept, sums, into, table, self.lines, self.written, self.programs,
            0 if rows is None else rows.rows, 0 if rows is None else rows.blocks, SLOT_PITCH=self.pitch,
            SLOT_VECTORS=self.vectors, PITCH=kept.shape[1], VECTORS=sums.shape[1], TALL=tall, WIDTH=width,
            BLOCK=rows_op.TUNING.grad_rows, WIDE=triton_dtype(self.sums.dtype), STAGES=rows_op.TUNING.grad_stages,
            **launch,
        )


def all_jobs(order: Sequence[Piece], borrowed: Borrowed, tall: int, width: int) -> list[tuple[int, ...]]:
    """The jobs of rows and memories whose gradients follow each other; factors of each sort lie side by side.

    What a memory borrows gets one gradient, so two jobs for one place become one.
    """
    jobs: dict[int, tuple[int, ...]] = {}  # by the place of the result
    total = 0
    starts = {True: (0, 0), False: (0, 0)}  # of rows and of memories: the next column of factors and of sums
    before: list[int] = []  # the places of the weights of the last row-wise call
    for piece in order:
        by_rows = isinstance(piece, Stages)
        column, place = starts[by_rows]
        piece_jobs = piece.jobs(column, place, 0, tall, width)
        shape_sizes, places = sizes(piece.shapes()), []
        for number, size in enumerate(shape_sizes):
            if number in borrowed and not by_rows:
                places.append(before[borrowed[number]])
            else:
                places.append(total)
                total += size
        begins = [0, *accumulate(shape_sizes)]
        for kind, left, right, into, line in piece_jobs:
            number = bisect_right(begins, into) - 1
            at = places[number] + into - begins[number]
            if by_rows:
                jobs[at] = (ROWS if kind == 0 else ROW_TOTALS, left, right, at, line, 0, 0)
            elif at in jobs:
                both = BOTH if kind == ALL_SLOTS else BOTH_TOTALS
                jobs[at] = (both, left, right, at, line, *jobs[at][1:3])
            else:
                jobs[at] = (kind, left, right, at, line, 0, 0)
        if isinstance(piece, Stages):
            before = places[-2 - 2 * piece.maps :] if piece.maps else []
        starts[by_rows] = (column + piece.pitch, place + piece.vectors)
    return sorted(jobs.values(), key=lambda job: job[0])  # long jobs first
