"""The gradients of weights of dynamic memories, and of the row-wise parts around them, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from regard.nn.fused_rows.kernels import _product, _total


@triton.jit
def memory_gradients(
    SLOT_KEPT, SLOT_SUMS, KEPT, SUMS, GRADS, JOBS, slots, written, programs, rows, blocks,
    SLOT_PITCH: tl.constexpr, SLOT_VECTORS: tl.constexpr, PITCH: tl.constexpr, VECTORS: tl.constexpr,
    TALL: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of a weight, or the sum of a stretch of vectors, as `weight_gradients`.

    The kind of a job is one of `layout.py`.
    """
    JOBS += tl.program_id(0) * 5
    kind, left, right = tl.load(JOBS), tl.load(JOBS + 1), tl.load(JOBS + 2)
    into, line = tl.load(JOBS + 3), tl.load(JOBS + 4)
    left, right = tl.multiple_of(left, 16), tl.multiple_of(right, 16)
    if kind <= 1:
        count = tl.where(kind == 0, slots, written)
        _product(
            SLOT_KEPT, GRADS + into, left, right, line, count, SLOT_PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES
        )
    elif kind == 2:
        _product(KEPT, GRADS + into, left, right, line, rows, PITCH, TALL, WIDTH, BLOCK, WIDE, STAGES)
    elif kind <= 4:
        count = tl.where(kind == 3, slots, written)
        _total(SLOT_KEPT + left, GRADS + into, count, SLOT_PITCH, WIDTH, BLOCK, WIDE)
    elif kind == 5:
        _total(SLOT_SUMS + left, GRADS + into, programs, SLOT_VECTORS, WIDTH, BLOCK, WIDE)
    else:
        _total(SUMS + left, GRADS + into, blocks, VECTORS, WIDTH, BLOCK, WIDE)
