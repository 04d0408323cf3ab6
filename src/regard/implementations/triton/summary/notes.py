"""The keys that reach the bar of a row, noted in the row's list of candidates.

Few rows have such a key in one block. To look for it everywhere would cost more than all the rest, so the walk along
the columns only flags rows. Here they are collected and looked at again, closely packed, in a kernel of its own: in the
walk it would take registers from the products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import query_blocks
from regard.implementations.triton.launch.device_functions import is_consecutive, rows_of
from regard.implementations.triton.summary.kernels import LENGTHS, packed, relative_sizes


@triton.jit(do_not_specialize=LENGTHS)
def note_keys(
    Q, K, PEAK, BAR, COUNT, FOUND, FLAGS, LINES, EDGES, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, edges, first_step, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    STRETCH: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr, ROOM: tl.constexpr,
):
    """Note the keys of one block, for the rows that `along_columns` flagged, `CHUNK` of its steps at a time.

    The candidates of a row come in any order; COUNT says how many there are, also where the list has no room for them.
    """
    block = tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    start = block * BLOCK_K
    columns, inside, wide = start + tl.arange(0, BLOCK_K), tl.arange(0, PART), tl.arange(0, BLOCK_D)
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += line.to(tl.int64) * LIST_STRIDES[2]
    rows_before = (batch * heads + head).to(tl.int64) * q_len
    mine = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + block
    FLAGS += mine * (STRETCH * BLOCK_Q)
    LINES += (mine * tl.num_programs(2) + tl.program_id(2)) * (CHUNK * BLOCK_Q)
    Q += batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
    partial, full, first, before, full_first = query_blocks(
        FORM, TABLE_STRIDES, EDGES + batch * LIST_STRIDES[3], COUNTS + line * 2, edges, q_len, start, k_len, BLOCK_Q,
        BLOCK_K,
    )
    steps = tl.minimum(STRETCH, partial + full - first_step)
    key = rows_of(K, K_STRIDES, batch, head // group, start, columns < k_len, D, BLOCK_K, BLOCK_D, False)
    for chunk in range(tl.program_id(2) * CHUNK, steps, tl.num_programs(2) * CHUNK):
        index = tl.arange(0, CHUNK * BLOCK_Q)
        flags = FLAGS + chunk * BLOCK_Q + index
        flagged = tl.load(flags, mask=index < (steps - chunk) * BLOCK_Q, other=0).to(tl.int32)
        tl.store(LINES + tl.cumsum(flagged, 0) - 1, index.to(tl.int16), mask=flagged != 0)
        count = tl.sum(flagged, 0)
        tl.debug_barrier()  # other threads read what was written
        for chosen in range(0, count, PART):
            real = chosen + inside < count
            place = tl.load(LINES + chosen + inside, mask=real, other=0).to(tl.int32)
            step = first_step + chunk + place // BLOCK_Q
            rows = _blocks(FORM, LIST, step, first, before, full_first, full) * BLOCK_Q + place % BLOCK_Q
            at = rows_before + rows
            query = tl.load(
                Q + rows[:, None].to(tl.int64) * Q_STRIDES[2] + wide[None, :],
                mask=real[:, None] & (wide < D)[None, :], other=0.0,
            )
            peak = tl.load(PEAK + at, mask=real, other=float("inf"))
            bar = tl.load(BAR + at, mask=real, other=float("inf"))
            sizes = relative_sizes(
                tl.dot(query, tl.trans(key), input_precision=PRECISION), peak, rows, columns, TABLES, TABLE_STRIDES,
                NUMBERS, batch, head, q_len, k_len, scale, cap, FORM, BIAS, CAP, False,
            )
            many = tl.sum((sizes >= bar[:, None]).to(tl.int32), 1)
            slot = tl.atomic_add(COUNT + at, many, mask=many > 0, sem="relaxed")
            largest = tl.max(sizes, 1)
            for _ in range(0, tl.minimum(tl.max(many, 0), ROOM)):  # mostly one, two or three
                column = tl.min(tl.where(sizes == largest[:, None], columns[None, :], 0x7FFFFFFF), 1)
                fits = (largest >= bar) & (slot < ROOM)
                tl.store(FOUND + at * ROOM + slot, packed(largest, column), mask=fits)
                slot += 1
                sizes = tl.where(columns[None, :] == column[:, None], -1.0, sizes)
                largest = tl.max(sizes, 1)
        tl.debug_barrier()  # the next rows are written in the same place


@triton.jit
def _blocks(FORM: tl.constexpr, LIST, step, first, before, full_first, full):
    """The blocks visited in several steps, where full ones come first."""
    if is_consecutive(FORM):
        around = tl.where(step - full < before, first + step - full, first + step)
        return tl.where(step < full, full_first + step, around)
    else:
        return tl.load(LIST + tl.where(step < full, full_first + step, step - full))
