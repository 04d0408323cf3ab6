"""The gradients of weights of dynamic memories, and of the row-wise parts around them, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from regard_fast.fused_rows.kernels import _added, _product


@triton.jit
def memory_gradients(
    SLOT_KEPT, SLOT_SUMS, KEPT, SUMS, GRADS, JOBS, slots, written, programs, rows, blocks,
    SLOT_PITCH: tl.constexpr, SLOT_VECTORS: tl.constexpr, PITCH: tl.constexpr, VECTORS: tl.constexpr,
    TALL: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):
    """A tile of the gradient of a weight, or the sum of a stretch of vectors, as `weight_gradients`.

    A job has the columns of factors of rows that are added to those of slots as its last two numbers. Its kind is one
    of `layout.py`.
    """
    JOBS += tl.program_id(0) * 7
    kind, left, right = tl.load(JOBS), tl.load(JOBS + 1), tl.load(JOBS + 2)
    into, line = tl.load(JOBS + 3), tl.load(JOBS + 4)
    left, right = tl.multiple_of(left, 16), tl.multiple_of(right, 16)
    row_left, row_right = tl.multiple_of(tl.load(JOBS + 5), 16), tl.multiple_of(tl.load(JOBS + 6), 16)
    i, j = tl.arange(0, TALL), tl.arange(0, WIDTH)
    tile, stretch = GRADS + into + i[:, None] * line + j[None, :], GRADS + into + j
    if kind <= 2:
        count = tl.where(kind == 2, written, slots)
        found = _product(SLOT_KEPT, left, right, count, SLOT_PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES)
        if kind == 0:
            found += _product(KEPT, row_left, row_right, rows, PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES)
        tl.store(tile, found)
    elif kind == 3:
        tl.store(tile, _product(KEPT, left, right, rows, PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES))
    elif kind <= 6:
        count = tl.where(kind == 6, written, slots)
        total = _added(SLOT_KEPT, left, count, SLOT_PITCH, WIDTH, BLOCK, WIDE)
        if kind == 4:
            total += _added(SUMS, row_left, blocks, VECTORS, WIDTH, BLOCK, WIDE)
        tl.store(stretch, total)
    elif kind == 7:
        tl.store(stretch, _added(SLOT_SUMS, left, programs, SLOT_VECTORS, WIDTH, BLOCK, WIDE))
    else:
        tl.store(stretch, _added(SUMS, left, blocks, VECTORS, WIDTH, BLOCK, WIDE))
