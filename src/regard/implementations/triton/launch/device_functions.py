"""Device functions for masks, biases, scores and dropout, inlined into a kernel when it is compiled.

A mask or bias is a compile-time string, the *form* (`form_of`): `&(s0,0,1,4)(e2,8,3,12)` is a span joined with equal
ids. All numbers (tables, their strides, widths of Gaussians) are data, so that one compiled kernel runs every length,
offset and window of the same form.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from regard.implementations.lowering import Node

_KINDS = {"and": "&", "or": "|", "not": "~", "sum": "+"}
_LEAVES = {
    "span": "s",
    "band": "b",
    "ends": "a",
    "same": "e",
    "dense": "d",
    "slope": "l",
    "distance": "t",
    "gaussian": "g",
}


def form_of(node: Node | None) -> str:
    """A node of `lowering` as text; "." for none: everything is visible, or nothing is added."""
    if node is None:
        return "."
    if node[0] in _KINDS:
        return _KINDS[node[0]] + "".join(f"({form_of(part)})" for part in node[1:])
    flat: list[int] = []
    for part in node[1:]:
        flat.extend(part if isinstance(part, tuple) else (part,))
    return _LEAVES[node[0]] + ",".join(map(str, flat))


@triton.constexpr_function
def kind(form: Any) -> Any:
    """The first letter of a form."""
    return form[0]


@triton.constexpr_function
def is_consecutive(form: Any) -> Any:
    """Whether the blocks that a block visits follow each other: there is no mask, or it is a band or a span."""
    return form[0] in ".bs"


@triton.constexpr_function
def number(form: Any, index: Any) -> Any:
    """The index-th whole number of a leaf."""
    return int(form[1:].split(",")[index])


@triton.constexpr_function
def subform(form: Any, index: Any) -> Any:
    """The index-th bracket of a join."""
    depth, start, found = 0, 0, []
    for at, letter in enumerate(form):
        if letter == "(":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif letter == ")":
            depth -= 1
            if depth == 0:
                found.append(form[start:at])
    return found[index]


@triton.jit
def visible(FORM: tl.constexpr, TABLES, STRIDES, batch, head, rows, columns):
    """Whether each query of `rows` sees each key of `columns`: two index tensors that broadcast to a tile."""
    if kind(FORM) == "&":
        left = visible(subform(FORM, 0), TABLES, STRIDES, batch, head, rows, columns)
        return left & visible(subform(FORM, 1), TABLES, STRIDES, batch, head, rows, columns)
    elif kind(FORM) == "|":
        left = visible(subform(FORM, 0), TABLES, STRIDES, batch, head, rows, columns)
        return left | visible(subform(FORM, 1), TABLES, STRIDES, batch, head, rows, columns)
    elif kind(FORM) == "~":
        return visible(subform(FORM, 0), TABLES, STRIDES, batch, head, rows, columns) == 0
    elif kind(FORM) == "b":
        low, high = band_ends(FORM, STRIDES)
        return reaches(columns - (rows + low), high - low)
    elif kind(FORM) == "s":
        low = _by_row(TABLES[number(FORM, 0)], STRIDES, number(FORM, 1), batch, rows)
        high = _by_row(TABLES[number(FORM, 2)], STRIDES, number(FORM, 3), batch, rows)
        return reaches(columns - low, high - low)
    elif kind(FORM) == "a":
        low = _by_row(
            TABLES[number(FORM, 0)] + head * STRIDES[number(FORM, 1) + 1], STRIDES, number(FORM, 1), batch, rows
        )
        high = _by_row(
            TABLES[number(FORM, 2)] + head * STRIDES[number(FORM, 3) + 1], STRIDES, number(FORM, 3), batch, rows
        )
        return (columns >= low) & (columns < high)
    elif kind(FORM) == "e":
        mine = _by_row(TABLES[number(FORM, 0)], STRIDES, number(FORM, 1), batch, rows)
        base = TABLES[number(FORM, 2)] + batch * STRIDES[number(FORM, 3)]
        return mine == _along(base, columns, STRIDES[number(FORM, 3) + 3])
    elif kind(FORM) == "d":
        return _entry(TABLES[number(FORM, 0)], STRIDES, number(FORM, 1), batch, head, rows, columns) != 0
    else:
        return (rows >= 0) & (columns >= 0)


@triton.jit
def reaches(away, many):
    """Whether a distance is at least 0 and below `many`: one comparison, since without its sign −1 is large."""
    return away.to(tl.uint32, bitcast=True) < tl.maximum(many, 0).to(tl.uint32, bitcast=True)


@triton.jit
def seen_in_tile(FORM: tl.constexpr, TABLES, STRIDES, batch, head, rows, columns, safe_rows, safe_columns, k_len):
    """`visible` for indices that may lie beyond the last query or key; no such key is seen. The safe ones may not."""
    if kind(FORM) == "b":
        low, high = band_ends(FORM, STRIDES)
        if rows.shape[0] == 1:
            # A thread has fewer keys than queries here: what belongs to a key takes fewer registers.
            return reaches(rows - (columns - high + 1), tl.where(columns < k_len, high - low, 0))
        else:
            return reaches(columns - (rows + low), tl.minimum(high, k_len - rows) - low)
    elif kind(FORM) == "s":  # no row reaches beyond the last key
        return visible(FORM, TABLES, STRIDES, batch, head, safe_rows, columns)
    else:
        return visible(FORM, TABLES, STRIDES, batch, head, safe_rows, safe_columns) & (columns < k_len)


@triton.jit
def slope_of(FORM: tl.constexpr, TABLES, STRIDES, head, UNIT: tl.constexpr = 1.4426950408889634):
    """How much a slope's bias, times `UNIT`, falls from one key to the one before; and the shift of its positions.

    For keys up to the query's own position it is slope · (column − row − shift): a number of the row and one of the
    column, neither of which a kernel has to compute for each pair. Other keys need `bend`, too.
    """
    slope = tl.load(TABLES[number(FORM, 1)] + head * STRIDES[number(FORM, 2) + 1])
    return slope * UNIT, STRIDES[number(FORM, 0)]


@triton.jit
def bend(slope, shift, rows, columns):
    """What to subtract from slope · (column − row − shift) so that it falls behind a query's position as before it."""
    return (2.0 * slope) * tl.maximum((columns - (rows + shift)).to(tl.float32), 0.0)


@triton.jit
def bias_tile(FORM: tl.constexpr, TABLES, STRIDES, NUMBERS, batch, head, rows, columns, UNIT: tl.constexpr):
    """The bias of a tile in float32, times `UNIT` as all scores."""
    if kind(FORM) == "+":
        left = bias_tile(subform(FORM, 0), TABLES, STRIDES, NUMBERS, batch, head, rows, columns, UNIT)
        total = left + bias_tile(subform(FORM, 1), TABLES, STRIDES, NUMBERS, batch, head, rows, columns, UNIT)
        return tl.where(total == float("-inf"), total, _not_below(total))
    elif kind(FORM) == "l":
        slope, shift = slope_of(FORM, TABLES, STRIDES, head, UNIT)
        return -slope * tl.abs(columns.to(tl.float32) - (rows + shift).to(tl.float32))
    elif kind(FORM) == "g":
        START: tl.constexpr = number(FORM, 1)
        base = TABLES[number(FORM, 0)] + batch * STRIDES[START] + head * STRIDES[START + 1]
        away = columns.to(tl.float32) - _along(base, rows, STRIDES[START + 2])
        return _not_below(away * away * (UNIT * NUMBERS[number(FORM, 2)]))
    elif kind(FORM) == "t":
        base = TABLES[number(FORM, 1)] + head * STRIDES[number(FORM, 2) + 1]
        return tl.load(base + (columns - rows + STRIDES[number(FORM, 0)])).to(tl.float32) * UNIT
    else:
        entry = _entry(TABLES[number(FORM, 0)], STRIDES, number(FORM, 1), batch, head, rows, columns)
        entry = entry.to(tl.float32)
        return tl.where(entry == float("-inf"), entry, _not_below(entry) * UNIT)


@triton.jit
def _not_below(numbers):
    """No less than −1e38, so that a finite bias is finite in base 2 and in a sum of two."""
    return tl.maximum(numbers, -1e38, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def band_ends(FORM: tl.constexpr, STRIDES):
    """The distances from a query to its first key and to the one after its last, as `lowering` keeps them."""
    return STRIDES[number(FORM, 0)] >> 2, STRIDES[number(FORM, 0) + 1] >> 2


@triton.jit
def _by_row(table, STRIDES, START: tl.constexpr, batch, rows):
    return _along(table + batch * STRIDES[START], rows, STRIDES[START + 2])


@triton.jit
def _along(base, index, stride):
    """Numbers at an index of one axis, or of two of which one is 1: read along one axis.

    Of an index with two axes Triton would let each thread read the number of every element that it holds.
    """
    if len(index.shape) == 1:
        return tl.load(base + index * stride)
    elif index.shape[0] == 1:
        return tl.load(base + tl.reshape(index, [index.shape[1]]) * stride)[None, :]
    else:
        return tl.load(base + tl.reshape(index, [index.shape[0]]) * stride)[:, None]


@triton.jit
def _entry(table, STRIDES, START: tl.constexpr, batch, head, rows, columns):
    base = table + batch.to(tl.int64) * STRIDES[START] + head.to(tl.int64) * STRIDES[START + 1]
    return tl.load(base + rows.to(tl.int64) * STRIDES[START + 2] + columns * STRIDES[START + 3])


@triton.jit
def tanh(x, APPROXIMATE: tl.constexpr):
    """tanh. `APPROXIMATE`: to 2⁻¹¹, by one GPU instruction, for inputs of half precision."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        power = tl.exp(-2.0 * tl.abs(x))
        large = (1.0 - power) / (1.0 + power)
        square = x * x
        # Below 1/8 the quotient cancels; this series is exact to float32 there.
        small = tl.abs(x) * (
            1.0 + square * (-0.33333334 + square * (0.13333334 + square * (-0.05396825 + square * 0.02186949)))
        )
        return tl.where(x < 0, -1.0, 1.0) * tl.where(tl.abs(x) < 0.125, small, large)


@triton.jit
def final_scores(products, BIAS: tl.constexpr, CAP: tl.constexpr, APPROXIMATE: tl.constexpr,
             TABLES, STRIDES, NUMBERS, scale, cap, batch, head, rows, columns,
             UNIT: tl.constexpr = 1.4426950408889634):
    """Scores times `UNIT` from dot products, to base 2 unless it is given, and the tanh if they are capped."""
    flattened = products
    if CAP:
        flattened = tanh(products * (scale / cap), APPROXIMATE)
        scores = flattened * (cap * UNIT)
    else:
        scores = products * (scale * UNIT)
    if kind(BIAS) != ".":
        scores += bias_tile(BIAS, TABLES, STRIDES, NUMBERS, batch, head, rows, columns, UNIT)
    return scores, flattened


@triton.jit
def nonfinite_rows(query):
    """What to add to the scores of each row (rows, 1): NaN where a query contains ±inf, else 0.

    Its scores would be ±inf, and a row of only −inf would count as empty. The queries themselves are not changed, so
    that they can go from memory to the matrix units without passing through registers.
    """
    infinite = tl.max(tl.where(tl.abs(query.to(tl.float32)) == float("inf"), 1, 0), 1)
    return tl.where(infinite == 1, float("nan"), 0.0)[:, None]


@triton.jit
def row_state(seed, batch, head, rows):
    """The hash of seed, batch entry, head and query that decides dropout in a row (see `regard.formula.dropout`)."""
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    state = _mix(_mix(low) ^ (seed >> 32).to(tl.uint32))
    state = _mix(state ^ (batch.to(tl.uint32) * 0x9E3779B1))
    state = _mix(state ^ (head.to(tl.uint32) * 0x85EBCA6B))
    return _mix(state ^ (rows.to(tl.uint32) * 0xC2B2AE35))


@triton.jit
def dropout_keeps(state, columns, threshold):
    """True where a weight is kept; the threshold is the fraction to drop in units of 2⁻³², minus 2³¹."""
    bits = _mix(state ^ (columns.to(tl.uint32) * 0x9E3779B1))
    return (bits ^ 0x80000000).to(tl.int32, bitcast=True) >= threshold


@triton.jit
def _mix(state):
    state = state ^ (state >> 16)
    state = state * 0x7FEB352D
    state = state ^ (state >> 15)
    state = state * 0x846CA68B
    return state ^ (state >> 16)


@triton.jit
def tile(pointers, real, across, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Load a tile, zeros where a row is not `real` or lies beyond the width. `WHOLE`: every row is real."""
    if WHOLE:
        if WIDTH == BLOCK:
            return tl.load(pointers)
        else:
            return tl.load(pointers, mask=(across < WIDTH), other=0.0)
    elif WIDTH == BLOCK:
        return tl.load(pointers, mask=real, other=0.0)
    else:
        return tl.load(pointers, mask=real & (across < WIDTH), other=0.0)


@triton.jit
def rows_of(SOURCE, STRIDES, batch, head, start, real, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ACROSS: tl.constexpr,
            BULK: tl.constexpr):
    """`BLOCK` rows of one head from `start` on, zeros beyond the end and where they are not `real`.

    `BULK`: `SOURCE` is a descriptor for the copy engine, which needs neither addresses in registers nor `real`.
    """
    if BULK:
        return SOURCE.load([batch, head, start, 0]).reshape([BLOCK, ACROSS])
    else:
        across = tl.arange(0, ACROSS)[None, :]
        # Only the start needs 64 bits: offsets inside a tile are small.
        base = (
            SOURCE + batch.to(tl.int64) * STRIDES[0] + head.to(tl.int64) * STRIDES[1] + start.to(tl.int64) * STRIDES[2]
        )
        return tile(
            base + (tl.arange(0, BLOCK)[:, None] * STRIDES[2] + across), real[:, None], across, WIDTH, ACROSS, False
        )


@triton.jit
def store_rows(TARGET, STRIDES, batch, head, rows, across, numbers, length, WIDTH: tl.constexpr):
    """Write numbers (rows, across) of one head in the dtype of `TARGET`: none beyond its length and its width."""
    TARGET += batch.to(tl.int64) * STRIDES[0] + head.to(tl.int64) * STRIDES[1]
    tl.store(
        TARGET + rows[:, None].to(tl.int64) * STRIDES[2] + across[None, :], numbers.to(TARGET.dtype.element_ty),
        mask=(rows < length)[:, None] & (across[None, :] < WIDTH),
    )


@triton.jit
def load_row_stats(SOURCE, line, start, padded_rows, BLOCK: tl.constexpr, BULK: tl.constexpr):
    """A number for each of `BLOCK` rows of one line from `start` on; lines are padded to whole blocks."""
    if BULK:
        return SOURCE.load([line, start]).reshape([BLOCK])
    else:
        return tl.load(SOURCE + line.to(tl.int64) * padded_rows + start + tl.arange(0, BLOCK))
