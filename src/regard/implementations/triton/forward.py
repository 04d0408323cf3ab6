"""The forward kernel: softmax(score(q, k) + bias) v for a block of queries, one block of keys after the other."""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.block_schedule import key_blocks, next_block, program_block
from regard.implementations.triton.device_functions import (
    dropout_keeps,
    final_scores,
    nonfinite_rows,
    row_state,
    rows_of,
    visible,
)

_DATA = ["q_len", "k_len", "heads", "group", "TABLE_STRIDES", "LIST_STRIDES", "SEEN_STRIDES", "threshold"]


@triton.jit(do_not_specialize=_DATA)
def forward(
    Q, K, V, OUT, LSE, SINK, SEED, SEEN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, V_STRIDES, OUT_STRIDES, SEEN_STRIDES, LIST_STRIDES,
    heads, group, q_len, k_len, scale, cap, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, DROPS: tl.constexpr,
    HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """One program for each block of queries, head and batch entry."""
    blocks = tl.cdiv(q_len, BLOCK_Q)
    block, line = program_block(ORDER, blocks, ORDERED)
    if not ORDERED:
        block = blocks - 1 - block  # under a causal mask the last has most to do and starts first
    batch, head = line // heads, line % heads
    shared = head // group
    start_q = block * BLOCK_Q
    rows, across = start_q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_V)
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += line.to(tl.int64) * LIST_STRIDES[2]
    query = rows_of(Q, Q_STRIDES, batch, head, start_q, rows < q_len, D, BLOCK_Q, BLOCK_D, False)
    nonfinite = nonfinite_rows(query)
    safe_rows = tl.minimum(rows, q_len - 1)
    state = safe_rows[:, None]
    if DROPS:
        state = row_state(tl.load(SEED), batch, head, safe_rows)[:, None]
    partial, full, first, before, _unused = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + line * 2, batch, safe_rows, k_len, BLOCK_K
    )
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    output = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    inside = tl.arange(0, BLOCK_K)
    for step in tl.range(0, partial + full):
        start, partly = next_block(FORM, LIST, step, first, before, full)
        start *= BLOCK_K
        columns = start + inside
        real = columns < k_len
        if HIDES:
            real &= tl.load(SEEN + columns, mask=real, other=0) != 0
        key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, BULK)
        products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        safe_columns = tl.minimum(columns, k_len - 1)
        scores, _ = final_scores(
            products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
            safe_rows[:, None], safe_columns[None, :],
        )  # fmt: skip
        if not CAP:
            scores += nonfinite
        if partly:
            seen = visible(
                FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows[:, None], safe_columns[None, :]
            )
            scores = tl.where(seen & (columns < k_len)[None, :], scores, float("-inf"))
        highest = tl.maximum(largest, tl.max(scores, 1))
        steady = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - steady[:, None])
        fade = tl.exp2(largest - steady)
        total = total * fade + tl.sum(weights, 1)
        if DROPS:
            weights = tl.where(dropout_keeps(state, columns[None, :], threshold), weights * keep, 0.0)
        value = rows_of(V, V_STRIDES, batch, shared, start, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
        output = tl.dot(weights.to(value.dtype), value, output * fade[:, None], input_precision=PRECISION)
        largest = highest
    empty = total == 0.0  # a NaN is not
    lse = tl.where(
        empty, float("-inf"), (largest + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    )
    if SINKS:
        sink = tl.load(SINK + head).to(tl.float32) * 1.4426950408889634
        highest = tl.maximum(largest, sink)
        fade = tl.exp2(largest - highest)
        output *= fade[:, None]
        total = total * fade + tl.exp2(sink - highest)
    output = output / tl.where(empty, 1.0, total)[:, None]
    OUT += batch.to(tl.int64) * OUT_STRIDES[0] + head.to(tl.int64) * OUT_STRIDES[1]
    tl.store(
        OUT + rows[:, None].to(tl.int64) * OUT_STRIDES[2] + across[None, :], output.to(OUT.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (across[None, :] < WIDTH),
    )  # fmt: skip
    tl.store(LSE + (batch * heads + head).to(tl.int64) * q_len + rows, lse, mask=rows < q_len)
