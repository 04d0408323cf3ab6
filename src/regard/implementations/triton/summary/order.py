"""The strongest keys of each row, from the candidate lists that `summary_notes.py` writes.

Where a list is not enough (more ties than it can hold, a row of NaN), the row is searched again, key by key: about as
much work as another pass, for the blocks that contain such rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import block_of_step, key_blocks
from regard.implementations.triton.launch.device_functions import rows_of
from regard.implementations.triton.summary.kernels import LENGTHS, packed, scored, worth


@triton.jit
def _write(entries, share, wanted, at, WEIGHTS, KEYS, top, ROWS: tl.constexpr, TOP: tl.constexpr):
    """The `top` largest entries of each wanted row, in falling order, as weights and keys."""
    slot = tl.arange(0, TOP)[None, :]
    best = tl.full([ROWS, TOP], -1, tl.int64)
    for index in range(0, top):
        largest = tl.max(entries, 1)[:, None]
        best = tl.where(slot == index, largest, best)
        entries = tl.where(entries == largest, -1, entries)
    size = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    key = 0x7FFFFFFF - (best & 0xFFFFFFFF)
    mask, target = wanted[:, None] & (slot < top), at[:, None] * top + slot
    tl.store(WEIGHTS + target, tl.where(best < 0, 0.0, size * share[:, None]), mask=mask)
    tl.store(KEYS + target, tl.where(best < 0, -1, key), mask=mask)


@triton.jit
def _lacking(count, share, bar, top, ROOM: tl.constexpr):
    """Rows whose candidates lack their strongest keys: too many ties, a NaN, or scores rounded differently."""
    few = (count < top) & (bar > 0.0) & (bar < float("inf"))
    return (count > ROOM) | few | (share != share)


@triton.jit(do_not_specialize=LENGTHS)
def order(
    SHARE, BAR, COUNT, FOUND, WEIGHTS, KEYS, q_len, top, ROWS: tl.constexpr, ROOM: tl.constexpr, TOP: tl.constexpr
):
    """The strongest keys of each row, from its candidates."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < q_len
    at = tl.program_id(1).to(tl.int64) * q_len + rows
    count = tl.load(COUNT + at, mask=inside, other=0)
    share = tl.load(SHARE + at, mask=inside, other=0.0)
    bar = tl.load(BAR + at, mask=inside, other=0.0)
    slot = tl.arange(0, ROOM)
    is_candidate = inside[:, None] & (slot[None, :] < count[:, None])
    entries = tl.load(FOUND + at[:, None] * ROOM + slot[None, :], mask=is_candidate, other=-1)
    wanted = inside & (_lacking(count, share, bar, top, ROOM) == 0)
    _write(entries, share, wanted, at, WEIGHTS, KEYS, top, ROWS, TOP)


@triton.jit(do_not_specialize=LENGTHS)
def search(
    Q, K, PEAK, SHARE, BAR, COUNT, WEIGHTS, KEYS, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, top, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr,
    ROOM: tl.constexpr, TOP: tl.constexpr,
):
    """The strongest keys of the rows that `order` left out, by reading every key. Most programs find no such row."""
    part = tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows = part * PART + tl.arange(0, PART)
    inside = rows < q_len
    at = (batch * heads + head).to(tl.int64) * q_len + rows
    share = tl.load(SHARE + at, mask=inside, other=0.0)
    lacking = _lacking(
        tl.load(COUNT + at, mask=inside, other=0), share, tl.load(BAR + at, mask=inside, other=0.0), top, ROOM
    )
    lacking &= inside
    if tl.max(lacking.to(tl.int32), 0) > 0:
        peak = tl.load(PEAK + at, mask=inside, other=float("inf"))
        safe_rows = tl.minimum(rows, q_len - 1)
        line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + part * PART // BLOCK_Q
        LIST += line.to(tl.int64) * LIST_STRIDES[2]
        COUNTS += line * 2
        query = rows_of(Q, Q_STRIDES, batch, head, part * PART, inside, D, PART, BLOCK_D, False)
        partial, full, first, before, full_first = key_blocks(
            FORM, TABLES, TABLE_STRIDES, COUNTS, batch, safe_rows, k_len, BLOCK_K
        )
        slots = tl.arange(0, TOP)[None, :]
        best = tl.where(slots < top, -1, 0x7FFFFFFFFFFFFFFF) + tl.zeros([PART, TOP], tl.int64)
        for step in range(0, partial + full):
            if step < full:
                start = block_of_step(FORM, LIST, step, first, before, full_first, True, full) * BLOCK_K
            else:
                start = block_of_step(FORM, LIST, step - full, first, before, full_first, False, full) * BLOCK_K
            scores = scored(
                query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, head // group, safe_rows,
                k_len, scale, cap, FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K, False, False,
            )
            columns = start + tl.arange(0, BLOCK_K)[None, :] + tl.zeros([PART, BLOCK_K], tl.int32)
            # In a row of NaN every weight is NaN: the lowest columns win.
            sizes = tl.exp2(scores * worth(scale, BIAS, CAP) - peak[:, None])
            sizes = tl.where((share != share)[:, None], 0.0, sizes)
            entries = tl.where(scores == float("-inf"), -1, packed(sizes, columns))
            entries = tl.where(lacking[:, None], entries, -1)
            strongest, weakest = tl.max(entries, 1), tl.min(best, 1)
            while tl.max((strongest > weakest).to(tl.int32), 0) > 0:
                # All entries differ, since each contains its column; only empty slots are equal.
                weak = (best == weakest[:, None]) & (strongest > weakest)[:, None]
                first_weak = tl.min(tl.where(weak, slots, TOP), 1)
                best = tl.where(weak & (slots == first_weak[:, None]), strongest[:, None], best)
                entries = tl.where(entries == strongest[:, None], -1, entries)
                strongest, weakest = tl.max(entries, 1), tl.min(best, 1)
        best = tl.where(slots < top, best, -1)
        _write(best, share, lacking, at, WEIGHTS, KEYS, top, PART, TOP)
