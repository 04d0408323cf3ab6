"""Attention over few keys, one program for each head: all scores of a head are on the multiprocessor at once.

Nothing is kept for the backward pass but queries, keys and values: it computes the weights again, and all three
gradients in one kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(P, entry, head, place, d, batches, heads, places):
    """The addresses of a block (places, width) of one head of (b,h,n,width) with these strides and 1."""
    return P + entry * batches + head * heads + place[:, None] * places + d[None, :]


@triton.jit
def _weights(query, key, i, j, queries, keys, scale, CAUSAL: tl.constexpr):
    """softmax(scale · q kᵀ); a row that sees nothing is zero."""
    scores = tl.dot(query, tl.trans(key)) * scale
    seen = (j < keys)[None, :] & (i < queries)[:, None]
    if CAUSAL:  # the last query is at the last key
        seen = seen & (j[None, :] <= i[:, None] + (keys - queries))
    scores = tl.where(seen, scores, float("-inf"))
    top = tl.max(scores, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    found = tl.exp(scores - top[:, None])
    total = tl.sum(found, 1)
    return found / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def short_forward(
    Q, K, V, OUT, heads, queries, keys, scale, q_b, q_h, q_n, k_b, k_h, k_n, o_b, o_h, o_n,
    CAUSAL: tl.constexpr, DT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):
    """The attended values of one head; keys and values have equal strides."""
    entry, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    i, j, d = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    rows, columns = (i < queries)[:, None], (j < keys)[:, None]
    query = tl.load(_rows(Q, entry, head, i, d, q_b, q_h, q_n), mask=rows, other=0.0)
    key = tl.load(_rows(K, entry, head, j, d, k_b, k_h, k_n), mask=columns, other=0.0)
    value = tl.load(_rows(V, entry, head, j, d, k_b, k_h, k_n), mask=columns, other=0.0)
    found = tl.dot(_weights(query, key, i, j, queries, keys, scale, CAUSAL).to(DT), value)
    tl.store(_rows(OUT, entry, head, i, d, o_b, o_h, o_n), found.to(DT), mask=rows)


@triton.jit
def short_backward(
    Q, K, V, D_OUT, D_Q, D_K, D_V, heads, queries, keys, scale, q_b, q_h, q_n, k_b, k_h, k_n, o_b, o_h, o_n,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n,
    CAUSAL: tl.constexpr, DT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):
    """The gradients of the queries, keys and values of one head; those of keys and values have equal strides."""
    entry, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    i, j, d = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    rows, columns = (i < queries)[:, None], (j < keys)[:, None]
    query = tl.load(_rows(Q, entry, head, i, d, q_b, q_h, q_n), mask=rows, other=0.0)
    key = tl.load(_rows(K, entry, head, j, d, k_b, k_h, k_n), mask=columns, other=0.0)
    value = tl.load(_rows(V, entry, head, j, d, k_b, k_h, k_n), mask=columns, other=0.0)
    pull = tl.load(_rows(D_OUT, entry, head, i, d, o_b, o_h, o_n), mask=rows, other=0.0)
    weights = _weights(query, key, i, j, queries, keys, scale, CAUSAL)
    of_weights = tl.dot(pull, tl.trans(value))
    of_scores = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * scale
    of_scores, weights = of_scores.to(DT), weights.to(DT)
    into = _rows(D_V, entry, head, j, d, dk_b, dk_h, dk_n)
    tl.store(into, tl.dot(tl.trans(weights), pull).to(DT), mask=columns)
    into = _rows(D_K, entry, head, j, d, dk_b, dk_h, dk_n)
    tl.store(into, tl.dot(tl.trans(of_scores), query).to(DT), mask=columns)
    into = _rows(D_Q, entry, head, i, d, dq_b, dq_h, dq_n)
    tl.store(into, tl.dot(of_scores, key).to(DT), mask=rows)
