"""Which blocks of keys a block of queries visits, and which blocks of queries a block of keys, decided in the kernel.

A mask that is a band, one span, or none, needs no list: the ends of its rows suffice. Any other mask has lists of
blocks, partly visible ones first, which `blocks.py` makes from the expression.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.device_functions import _by_row, band_ends, is_consecutive, kind, number


@triton.jit
def program_block(ORDER, blocks, pieces, ORDERED: tl.constexpr):
    """The block that this program computes, and its batch entry and head, as one number.

    `ORDERED`: blocks with the most work come first, for all heads, so that no program runs alone at the end. 2: long
    ones are cut into pieces (`pieces` in all), see `piece`.
    """
    if ORDERED == 2:
        lines = tl.num_programs(0) // pieces
        return tl.load(ORDER + tl.program_id(0) // lines * 4), tl.program_id(0) % lines
    elif ORDERED:
        lines = tl.num_programs(0) // blocks
        return tl.load(ORDER + tl.program_id(0) // lines), tl.program_id(0) % lines
    else:
        return tl.program_id(0) % blocks, tl.program_id(0) // blocks


@triton.jit
def piece(ORDER, pieces, steps, ORDERED: tl.constexpr):
    """The steps that this program takes of a block's `steps`, and the slot for its result; −1: it takes them all."""
    if ORDERED == 2:
        ORDER += tl.program_id(0) // (tl.num_programs(0) // pieces) * 4
        return tl.load(ORDER + 1), tl.minimum(tl.load(ORDER + 2), steps), tl.load(ORDER + 3)
    else:
        return steps * 0, steps, steps * 0 - 1


@triton.jit
def clean_steps(FORM: tl.constexpr, UNCLEAN, first, begin, end):
    """The first of the steps from `begin` to `end` that may visit a row which must not be read; `end` if none does.

    UNCLEAN holds, for each block, the next one that contains such a row (itself, if it does).
    """
    if is_consecutive(FORM):
        return tl.minimum(tl.maximum(tl.load(UNCLEAN + first + begin) - first, begin), end)
    else:
        return tl.where(tl.load(UNCLEAN) == 0x7FFFFFFF, end, begin)


@triton.jit
def row_ends(FORM: tl.constexpr, TABLES, STRIDES, batch, rows, k_len):
    """The first key that each of `rows` sees and the one after the last, where these follow each other."""
    if kind(FORM) == ".":
        return rows * 0, rows * 0 + k_len
    elif kind(FORM) == "b":
        near, far = band_ends(FORM, STRIDES)
        low = tl.minimum(tl.maximum(rows + near, 0), k_len)
        return low, tl.minimum(tl.maximum(rows + far, 0), k_len)
    else:
        low = _by_row(TABLES[number(FORM, 0)], STRIDES, number(FORM, 1), batch, rows)
        return low, _by_row(TABLES[number(FORM, 2)], STRIDES, number(FORM, 3), batch, rows)


@triton.jit
def key_blocks(FORM: tl.constexpr, TABLES, STRIDES, COUNTS, batch, rows, k_len, SIZE: tl.constexpr):
    """How many blocks of keys `rows` see in part, how many in full, and three numbers for `block_of_step`."""
    if kind(FORM) == ".":
        full = k_len // SIZE
        partial = tl.cdiv(k_len, SIZE) - full
        return partial, full, full * 0, full * 0, full * 0
    elif is_consecutive(FORM):
        low, high = row_ends(FORM, TABLES, STRIDES, batch, rows, k_len)
        lowest, highest = tl.min(low, 0), tl.max(high, 0)
        first = lowest // SIZE
        end = tl.where(lowest < highest, tl.maximum(tl.cdiv(highest, SIZE), first), first)
        full_first = tl.minimum(tl.maximum(tl.cdiv(tl.max(low, 0), SIZE), first), end)
        full_end = tl.minimum(tl.maximum(tl.min(high, 0) // SIZE, full_first), end)
        before = full_first - first
        return before + end - full_end, full_end - full_first, first, before, full_first
    else:
        partial, total = tl.load(COUNTS), tl.load(COUNTS + 1)
        return partial, total - partial, partial * 0, partial, partial


@triton.jit
def query_blocks(
    FORM: tl.constexpr, STRIDES, EDGES, COUNTS, edges, q_len, start, k_len, SIZE: tl.constexpr, SPAN: tl.constexpr
):
    """The same for the blocks of queries that see the `SPAN` keys from `start` on."""
    blocks = tl.cdiv(q_len, SIZE)
    if kind(FORM) == ".":
        inside = (start + SPAN <= k_len).to(tl.int32)
        return blocks * (1 - inside), blocks * inside, blocks * 0, blocks * (1 - inside), blocks * 0
    elif kind(FORM) == "b":
        # Key j is seen by the queries from j − high + 1 to j − low.
        low, high = band_ends(FORM, STRIDES)
        last = tl.minimum(start + SPAN, k_len) - 1
        first_row = tl.maximum(start - high + 1, 0)
        first = tl.where(first_row < q_len, first_row // SIZE, blocks)
        end = tl.maximum(tl.cdiv(tl.minimum(tl.maximum(last - low + 1, 0), q_len), SIZE), first)
        full_first = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(start + SPAN - high, 0), SIZE), first), end)
        full_end = tl.where(start - low >= q_len - 1, blocks, tl.maximum(start - low + 1, 0) // SIZE)
        full_end = tl.where(start + SPAN <= k_len, tl.minimum(full_end, end), full_first)
        full_end = tl.maximum(full_end, full_first)
        before = full_first - first
        return before + end - full_end, full_end - full_first, first, before, full_first
    elif kind(FORM) == "s":
        # EDGES holds for each block of queries the smallest low, largest high, largest low and smallest high.
        first, last, full_first, full_last, count = blocks, blocks * 0 - 1, blocks, blocks * 0 - 1, blocks * 0
        for chunk in range(0, blocks, 128):
            index = chunk + tl.arange(0, 128)
            real = index < blocks
            low = tl.load(EDGES + index, mask=real, other=0)
            high = tl.load(EDGES + edges + index, mask=real, other=0)
            seeing = real & (low < start + SPAN) & (high > start) & (low < high)
            first = tl.minimum(first, tl.min(tl.where(seeing, index, blocks), 0))
            last = tl.maximum(last, tl.max(tl.where(seeing, index, -1), 0))
            low = tl.load(EDGES + 2 * edges + index, mask=real, other=0)
            high = tl.load(EDGES + 3 * edges + index, mask=real, other=0)
            whole = real & (low <= start) & (high >= start + SPAN)
            full_first = tl.minimum(full_first, tl.min(tl.where(whole, index, blocks), 0))
            full_last = tl.maximum(full_last, tl.max(tl.where(whole, index, -1), 0))
            count += tl.sum(whole.to(tl.int32), 0)
        end = tl.maximum(first, last + 1)
        # Blocks that are fully visible but do not follow each other are treated as partly visible.
        together = (count > 0) & (count == full_last - full_first + 1)
        full_first = tl.where(together, full_first, end)
        full_end = tl.where(together, full_last + 1, end)
        before = full_first - first
        return before + end - full_end, full_end - full_first, first, before, full_first
    else:
        partial, total = tl.load(COUNTS), tl.load(COUNTS + 1)
        return partial, total - partial, partial * 0, partial, partial


@triton.jit
def known_query_blocks(
    FORM: tl.constexpr, STRIDES, COUNTS, line, q_len, start, k_len, SIZE: tl.constexpr, SPAN: tl.constexpr
):
    """The first four numbers of `query_blocks`, read from COUNTS where they were computed before."""
    if kind(FORM) == "s":
        COUNTS += line * 4
        return tl.load(COUNTS), tl.load(COUNTS + 1), tl.load(COUNTS + 2), tl.load(COUNTS + 3)
    else:
        partial, full, first, before, _ = query_blocks(
            FORM, STRIDES, COUNTS, COUNTS + line * 2, q_len, q_len, start, k_len, SIZE, SPAN
        )
        return partial, full, first, before


@triton.jit
def block_of_step(FORM: tl.constexpr, LIST, step, first, before, full_first, FULL: tl.constexpr, full):
    """The block that step `step` visits: the fully visible blocks are consecutive, the others lie around them."""
    if is_consecutive(FORM):
        if FULL:
            return full_first + step
        else:
            return tl.where(step < before, first + step, first + step + full)
    elif FULL:
        return tl.load(LIST + full_first + step)
    else:
        return tl.load(LIST + step)


@triton.jit
def next_block(FORM: tl.constexpr, LIST, step, first, before, full):
    """The block that step `step` of all steps visits, and whether it is only partly visible."""
    partly = (step < before) | (step >= before + full)
    if is_consecutive(FORM):
        return first + step, partly
    else:
        return tl.load(LIST + step), partly
