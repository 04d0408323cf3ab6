"""Additive attention over few keys: a program holds all keys and values of a head, and walks over queries.

Nothing is kept for the backward pass but the inputs: it computes the weights again, and all gradients in one kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.additive.pairs import tanh
from regard.implementations.triton.launch.device_functions import dropout_keeps, final_scores, row_state, visible

_LENGTHS = ["heads", "group", "q_len", "k_len", "reach", "TABLE_STRIDES", "threshold"]


@triton.jit
def _row(P, STRIDES, batch, head, at, across, WIDTH: tl.constexpr):
    """One row (width) of a head, in float32."""
    P += batch.to(tl.int64) * STRIDES[0] + head.to(tl.int64) * STRIDES[1] + at.to(tl.int64) * STRIDES[2]
    return tl.load(P + across, mask=across < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _all_rows(P, STRIDES, batch, head, places, length, across, WIDTH: tl.constexpr):
    """All rows (length, width) of a head, in float32, zeros beyond the end."""
    P += batch.to(tl.int64) * STRIDES[0] + head.to(tl.int64) * STRIDES[1]
    real = (places < length)[:, None] & (across < WIDTH)[None, :]
    return tl.load(P + places[:, None] * STRIDES[2] + across[None, :], mask=real, other=0.0).to(tl.float32)


@triton.jit
def _weigh(
    query, key, weight, TABLES, TABLE_STRIDES, NUMBERS, batch, head, at, columns, k_len, FORM: tl.constexpr,
    BIAS: tl.constexpr, GPU: tl.constexpr,
):
    """The weights of one query, the keys it sees, its log-sum-exp, and tanh (keys, width) with a quarter of its slope.

    `weight` contains the scale. A query that sees nothing has weights of zero.
    """
    curve, steep = tanh(query[None, :] + key, GPU)
    rows, safe = tl.zeros_like(columns) + at, tl.minimum(columns, k_len - 1)
    scores, _ = final_scores(
        tl.sum(curve * weight[None, :], 1), BIAS, False, False, TABLES, TABLE_STRIDES, NUMBERS, 1.0, 1.0, batch, head,
        rows, safe,
    )
    seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, rows, safe) & (columns < k_len)
    scores = tl.where(seen, scores, float("-inf"))
    largest = tl.max(scores, 0)
    steady = tl.where(largest == float("-inf"), 0.0, largest)
    shares = tl.where(seen, tl.exp2(scores - steady), 0.0)  # hidden keys stay zero also in a row of NaN
    total = tl.sum(shares, 0)
    empty = total == 0.0  # a NaN is not
    logsumexp = tl.where(empty, float("-inf"), (steady + tl.log2(total)) * 0.6931471805599453)
    return shares / tl.where(empty, 1.0, total), seen, logsumexp, curve, steep


@triton.jit(do_not_specialize=_LENGTHS)
def short_additive_forward(
    Q, K, V, WEIGHT, OUT, LSE, SEED, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES, V_STRIDES, weight_stride,
    heads, group, q_len, k_len, reach, scale, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, GPU: tl.constexpr,
):
    """The output and log-sum-exp of up to `reach` queries of one head."""
    turns = tl.cdiv(q_len, reach)
    both, first = tl.program_id(0) // turns, tl.program_id(0) % turns * reach
    batch, head = both // heads, both % heads
    columns, d, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    key = _all_rows(K, K_STRIDES, batch, head // group, columns, k_len, d, D)
    value = _all_rows(V, V_STRIDES, batch, head // group, columns, k_len, v, WIDTH)
    weight = tl.load(WEIGHT + head * weight_stride + d, mask=d < D, other=0.0).to(tl.float32) * scale
    for turn in tl.range(0, tl.minimum(reach, q_len - first)):
        at = first + turn
        query = _row(Q, Q_STRIDES, batch, head, at, d, D)
        shares, seen, logsumexp, _, _ = _weigh(
            query, key, weight, TABLES, TABLE_STRIDES, NUMBERS, batch, head, at, columns, k_len, FORM, BIAS, GPU
        )
        if DROPS:
            state = row_state(tl.load(SEED), batch, head, at)
            shares = tl.where(dropout_keeps(state, columns, threshold), shares * keep, 0.0)
        found = tl.sum(tl.where(seen[:, None], shares[:, None] * value, 0.0), 0)
        into = both.to(tl.int64) * q_len + at
        tl.store(OUT + into * WIDTH + v, found.to(OUT.dtype.element_ty), mask=v < WIDTH)
        tl.store(LSE + into, logsumexp)


@triton.jit(do_not_specialize=_LENGTHS)
def short_additive_backward(
    Q, K, V, WEIGHT, GRAD, OF_Q, OF_K, OF_V, OF_WEIGHT, SEED, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES,
    V_STRIDES, GRAD_STRIDES, weight_stride, heads, group, q_len, k_len, scale, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, GPU: tl.constexpr,
):
    """The gradients of the keys and values of one head, of the queries of all heads that share them, and their weights.

    OF_WEIGHT (b,h,width) gets the share of each batch entry, to be summed by the caller.
    """
    groups = heads // group
    batch, shared = tl.program_id(0) // groups, tl.program_id(0) % groups
    columns, d, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    key = _all_rows(K, K_STRIDES, batch, shared, columns, k_len, d, D)
    of_key, of_value = tl.zeros([BLOCK_K, BLOCK_D], tl.float32), tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    for member in tl.range(0, group):
        head = shared * group + member
        weight = tl.load(WEIGHT + head * weight_stride + d, mask=d < D, other=0.0).to(tl.float32) * scale
        of_weight = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
        for turn in tl.range(0, q_len):
            at = shared * 0 + turn  # in the interpreter, the number of a turn has no dtype
            query = _row(Q, Q_STRIDES, batch, head, at, d, D)
            grad = _row(GRAD, GRAD_STRIDES, batch, head, at, v, WIDTH)
            shares, seen, _, curve, steep = _weigh(
                query, key, weight, TABLES, TABLE_STRIDES, NUMBERS, batch, head, at, columns, k_len, FORM, BIAS, GPU
            )
            # Read again for every query: registers are short, and the values are in the nearest cache.
            value = _all_rows(V, V_STRIDES, batch, shared, columns, k_len, v, WIDTH)
            of_share, dropped = tl.sum(grad[None, :] * value, 1), shares
            if DROPS:
                kept = dropout_keeps(row_state(tl.load(SEED), batch, head, at), columns, threshold)
                of_share, dropped = (tl.where(kept, of_share * keep, 0.0), tl.where(kept, shares * keep, 0.0))
            delta = tl.sum(tl.where(seen, shares * of_share, 0.0), 0)
            slope = tl.where(seen, shares * (of_share - delta), 0.0)[:, None]
            # A hidden entry may be NaN, which a product with zero would keep.
            of_value += tl.where(seen[:, None], dropped[:, None] * grad[None, :], 0.0)
            of_weight += tl.where(seen[:, None], slope * curve, 0.0)
            pull = tl.where(seen[:, None], slope * (4.0 * steep) * weight[None, :], 0.0)
            of_key += pull
            into = (batch.to(tl.int64) * heads + head) * q_len + at
            tl.store(OF_Q + into * D + d, tl.sum(pull, 0).to(OF_Q.dtype.element_ty), mask=d < D)
        into = OF_WEIGHT + (batch.to(tl.int64) * heads + head) * D + d
        tl.store(into, tl.sum(of_weight, 0) * scale, mask=d < D)
    lines = tl.program_id(0).to(tl.int64) * k_len + columns[:, None]
    real = (columns < k_len)[:, None]
    into = OF_K + lines * D + d[None, :]
    tl.store(into, of_key.to(OF_K.dtype.element_ty), mask=real & (d < D)[None, :])
    into = OF_V + lines * WIDTH + v[None, :]
    tl.store(into, of_value.to(OF_V.dtype.element_ty), mask=real & (v < WIDTH)[None, :])
