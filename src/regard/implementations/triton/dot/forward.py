"""The forward kernel: softmax(score(q, k) + bias) v for a block of queries, one block of keys after the other."""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import (
    clean_steps,
    key_blocks,
    next_block,
    piece,
    program_block,
    row_ends,
)
from regard.implementations.triton.launch.device_functions import (
    bend,
    dropout_keeps,
    final_scores,
    is_consecutive,
    kind,
    nonfinite_rows,
    reaches,
    row_state,
    rows_of,
    slope_of,
    store_rows,
    visible,
)

_DATA = [
    "q_len", "k_len", "heads", "group", "TABLE_STRIDES", "LIST_STRIDES", "SEEN_STRIDES", "threshold", "pieces",
    "slots",
]


@triton.jit(do_not_specialize=_DATA)
def forward(
    Q, K, V, OUT, LSE, PARTS, K_ROWS, V_ROWS, SINK, SEED, SEEN, UNCLEAN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES,
    NUMBERS, Q_STRIDES, K_STRIDES, V_STRIDES, OUT_STRIDES, SEEN_STRIDES, LIST_STRIDES,
    heads, group, q_len, k_len, pieces, slots, scale, cap, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, DROPS: tl.constexpr,
    HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, RISES: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
):
    """One program for each block of queries, or piece of a long one (`ORDERED` = 2), head and batch entry.

    `BULK`: K and V are descriptors for the copy engine. From the first step on that visits a hidden key, which must not
    be read, rows are loaded from K_ROWS and V_ROWS.
    """
    blocks = tl.cdiv(q_len, BLOCK_Q)
    block, line = program_block(ORDER, blocks, pieces, ORDERED)
    if not ORDERED:
        block = blocks - 1 - block  # under a causal mask the last has most to do and starts first
    batch, head = line // heads, line % heads
    shared = head // group
    start_q = block * BLOCK_Q
    rows, across = start_q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_V)
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    query = rows_of(Q, Q_STRIDES, batch, head, start_q, rows < q_len, D, BLOCK_Q, BLOCK_D, False)
    nonfinite = nonfinite_rows(query)
    spoilt = False  # whether some row is to be NaN: then no listed block counts as fully visible, see `_attend_tile`
    if not (CAP or is_consecutive(FORM)):
        spoilt = tl.max(tl.max((nonfinite != nonfinite).to(tl.int32), 1), 0) > 0
    safe_rows = tl.minimum(rows, q_len - 1)
    state = safe_rows[:, None]
    if DROPS:
        state = row_state(tl.load(SEED), batch, head, safe_rows)[:, None]
    partial, full, first, before, _unused = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    begin, end, slot = piece(ORDER, pieces, partial + full, ORDERED)
    spoils = tl.zeros([BLOCK_Q], tl.float32)
    low, high = safe_rows, safe_rows  # not used
    if is_consecutive(FORM):  # which rows see something is known, and need not be looked for in every tile
        low, high = row_ends(FORM, TABLES, TABLE_STRIDES, batch, safe_rows, k_len)
        spoils = tl.where(low < high, tl.sum(nonfinite, 1), 0.0)
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    output = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    clean = end  # steps before this one visit no hidden key
    if HIDES:
        UNCLEAN += batch * SEEN_STRIDES[2] + shared * SEEN_STRIDES[3]
        clean = clean_steps(FORM, UNCLEAN, first, begin, end)
    if BULK or not HIDES:
        for step in tl.range(begin, clean):
            start, partly = next_block(FORM, LIST, step, first, before, full)
            partly |= spoilt
            largest, total, output = _attend_tile(
                query, nonfinite, state, largest, total, output, start * BLOCK_K, partly, low, high, K, V, SEEN, TABLES,
                TABLE_STRIDES, NUMBERS, K_STRIDES, V_STRIDES, batch, head, shared, start_q, safe_rows, k_len, scale,
                cap, threshold, keep, FORM, BIAS, CAP, DROPS, False, APPROXIMATE, RISES, SLOPED, PRECISION, D, WIDTH,
                BLOCK_D, BLOCK_V, BLOCK_K, BULK,
            )
    if HIDES:
        for step in tl.range(clean if BULK else begin, end, num_stages=1 if BULK else None):
            start, partly = next_block(FORM, LIST, step, first, before, full)
            partly |= spoilt
            largest, total, output = _attend_tile(
                query, nonfinite, state, largest, total, output, start * BLOCK_K, partly, low, high, K_ROWS, V_ROWS,
                SEEN, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, V_STRIDES, batch, head, shared, start_q, safe_rows,
                k_len, scale, cap, threshold, keep, FORM, BIAS, CAP, DROPS, True, APPROXIMATE, RISES, SLOPED,
                PRECISION, D, WIDTH, BLOCK_D, BLOCK_V, BLOCK_K, False,
            )
    if SLOPED:
        slope, _ = slope_of(BIAS, TABLES, TABLE_STRIDES, head)
        largest -= slope * (safe_rows - start_q).to(tl.float32)
    if is_consecutive(FORM) and not CAP:
        total += spoils
    if ORDERED == 2:  # noqa: SIM102  (a constant: what follows is compiled only for it)
        if slot >= 0:
            lines = tl.num_programs(0) // pieces
            place, inner = slot * lines + line, tl.arange(0, BLOCK_Q)
            STATS = PARTS + (slots * lines).to(tl.int64) * (BLOCK_Q * BLOCK_V)
            at = place.to(tl.int64) * BLOCK_Q + inner
            tl.store(PARTS + at[:, None] * BLOCK_V + across[None, :], output)
            tl.store(STATS + place * (2 * BLOCK_Q) + inner, largest)
            tl.store(STATS + place * (2 * BLOCK_Q) + BLOCK_Q + inner, total)
            return
    sink = 0.0
    if SINKS:
        sink = tl.load(SINK + head).to(tl.float32)
    output, lse = finish_rows(largest, total, output, sink, SINKS, OUT.dtype.element_ty == tl.float32)
    store_rows(OUT, OUT_STRIDES, batch, head, rows, across, output, q_len, WIDTH)
    tl.store(LSE + (batch * heads + head).to(tl.int64) * q_len + rows, lse, mask=rows < q_len)


@triton.jit
def _attend_tile(
    query, nonfinite, state, largest, total, output, start, partly, low, high, K, V, SEEN, TABLES, TABLE_STRIDES,
    NUMBERS, K_STRIDES, V_STRIDES, batch, head, shared, start_q, safe_rows, k_len, scale, cap, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, DROPS: tl.constexpr, HIDES: tl.constexpr,
    APPROXIMATE: tl.constexpr, RISES: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BULK: tl.constexpr,
):
    """Visit the keys from `start` on: the largest score so far, Σ exp(score − largest), and the same with values.

    Of a band, a row sees the keys from `low` up to `high`.
    """
    columns = start + tl.arange(0, BLOCK_K)
    real = columns < k_len
    if HIDES:
        real &= tl.load(SEEN + columns, mask=real, other=0) != 0
    key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, BULK)
    products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    # Plain products stay unscaled: scaling and the subtraction below are one operation.
    PLAIN: tl.constexpr = RISES and kind(BIAS) == "." and not CAP
    scores, unit = products, scale * 1.4426950408889634
    safe_columns = tl.minimum(columns, k_len - 1)
    slope, shift = 0.0, 0
    if SLOPED:  # scores lie higher by slope · (row − start_q), which all keys of a row have in common
        slope, shift = slope_of(BIAS, TABLES, TABLE_STRIDES, head)
        height = slope * (tl.arange(0, BLOCK_K) + (start - (start_q + shift))).to(tl.float32)
        # Said to be one operation: else the compiler joins the sum with the slope's product, for each pair again.
        scores = tl.fma(products, unit, height[None, :])
        partly |= start + BLOCK_K > start_q + shift + 1
    elif not PLAIN:
        scores, _ = final_scores(
            products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
            safe_rows[:, None], safe_columns[None, :],
        )
    if partly:
        if SLOPED:
            scores -= bend(slope, shift, safe_rows[:, None], columns[None, :])
        if not (CAP or is_consecutive(FORM)):
            scores += nonfinite
        if kind(FORM) == "b":
            # By the ends of rows: after `seen_in_tile`, and for a span, ptxas serialises the matrix units (C7515).
            scores = tl.where(reaches(columns[None, :] - low[:, None], (high - low)[:, None]), scores, float("-inf"))
        else:
            seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows[:, None], safe_columns[None, :])
            scores = tl.where(seen & (columns < k_len)[None, :], scores, float("-inf"))
    if PLAIN:
        highest = tl.maximum(largest, tl.max(scores, 1) * unit)
    else:
        highest = tl.maximum(largest, tl.max(scores, 1))
    steady = tl.where(highest == float("-inf"), 0.0, highest)
    if PLAIN:
        weights = tl.exp2(scores * unit - steady[:, None])
    else:
        weights = tl.exp2(scores - steady[:, None])
    fade = tl.exp2(largest - steady)
    total = total * fade + tl.sum(weights, 1)
    if DROPS:
        weights = tl.where(dropout_keeps(state, columns[None, :], threshold), weights * keep, 0.0)
    value = rows_of(V, V_STRIDES, batch, shared, start, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
    output = tl.dot(weights.to(value.dtype), value, output * fade[:, None], input_precision=PRECISION)
    return highest, total, output


@triton.jit
def finish_rows(largest, total, output, sink, SINKS: tl.constexpr, EXACT: tl.constexpr):
    """The output of some rows and their log-sum-exp without the sink, from scores to base 2.

    `EXACT`: in float64, since its error is that of every weight that the backward kernels compute from it.
    """
    empty = total == 0.0  # a NaN is not
    power = tl.log2(tl.where(empty, 1.0, total))
    if EXACT:
        lse = (largest.to(tl.float64) + power) * 0.6931471805599453
    else:
        lse = (largest + power) * 0.6931471805599453
    lse = tl.where(empty, float("-inf"), lse)
    if SINKS:
        sink *= 1.4426950408889634
        highest = tl.maximum(largest, sink)
        fade = tl.exp2(largest - highest)
        output *= fade[:, None]
        total = total * fade + tl.exp2(sink - highest)
    return output / tl.where(empty, 1.0, total)[:, None], lse
