"""A static memory between maps of rows: one kernel forward and one backward, with a program for each batch entry.

Slots S (m,D); queries q of the reader, keys k and values v of the writer for all rows, each (n,HEAD) for each head:

    a = W_q S + b_q,   C = W_o [softmax(scale · a kᵀ) v] + b_o        the slots ask the rows
    M = gain ⊙ norm(S + C) + shift
    o = softmax(scale · q (W_k M + b_k)ᵀ) (W_v M + b_v)                the rows ask the slots

Slots and one head at a time stay in registers from S to o. For the backward pass S + C and the mixed values before W_o
are kept; it makes the rest again, and keeps the factors of the weights' gradients (`layout.StaticSizes`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_fast.fused_memory.write_kernels import _mapped
from regard_fast.fused_rows.kernels import _block, _normalized, _normalized_back
from regard_fast.fused_rows.short_kernels import _rows, _weights


@triton.jit
def _written(sum, UPDATE, d, eps, D: tl.constexpr, WIDE: tl.constexpr):
    """The memory from slots and what was written to them, with its normalised rows and their rates."""
    hat, rate = _normalized(sum, eps, D)
    gain = tl.load(UPDATE[0] + d).to(WIDE)[None, :]
    return hat * gain + tl.load(UPDATE[1] + d).to(WIDE)[None, :], hat, rate, gain


@triton.jit
def _scores_back(weights, pull, value, scale, DT: tl.constexpr):
    """The gradient of the scores of one head from that of what was attended."""
    of_weights = tl.dot(pull, tl.trans(value))
    return (weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * scale).to(DT)


@triton.jit
def static_forward(
    Q, K, V, SLOTS, FOUND, SUM, MIXED, ASK, OUT, READ, UPDATE, rows, scale, eps, q_b, q_h, q_n, f_b, f_h, f_n,
    COUNT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    DT: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):
    """What the rows of one batch entry read.

    Q, K, V (b,h,rows,HEAD) have equal strides. ASK is (W_q, b_q), OUT (W_o, b_o), READ (W_k, b_k, W_v, b_v), UPDATE
    (gain, shift). SUM gets S + C, MIXED the mixed values before W_o, both (b,COUNT,D).
    """
    entry = tl.program_id(0)
    i, j, d, e = tl.arange(0, R), tl.arange(0, J), tl.arange(0, D), tl.arange(0, HEAD)
    held, real = (i < COUNT)[:, None], (j < rows)[:, None]
    line = entry * COUNT + i
    slots = tl.load(_block(SLOTS, i, d, D), mask=held, other=0.0).to(WIDE)
    low = slots.to(DT)
    slots += tl.load(OUT[1] + d).to(WIDE)[None, :]
    for head in tl.range(0, HEADS, num_stages=STAGES):
        at = head * HEAD + e
        asked = _mapped(low, tl.load(_block(ASK[0], at, d, D)).to(DT), ASK[1], at, WIDE).to(DT)
        key = tl.load(_rows(K, entry, head, j, e, q_b, q_h, q_n), mask=real, other=0.0)
        value = tl.load(_rows(V, entry, head, j, e, q_b, q_h, q_n), mask=real, other=0.0)
        mixed = tl.dot(_weights(asked, key, i, j, COUNT, rows, scale, False).to(DT), value).to(DT)
        tl.store(_block(MIXED, line, at, D), mixed, mask=held)
        slots += tl.dot(mixed, tl.trans(tl.load(_block(OUT[0], d, at, D)).to(DT)))
    tl.store(_block(SUM, line, d, D), slots, mask=held)
    memory, _, _, _ = _written(slots, UPDATE, d, eps, D, WIDE)
    low = memory.to(DT)
    for head in tl.range(0, HEADS, num_stages=STAGES):
        at = head * HEAD + e
        key = _mapped(low, tl.load(_block(READ[0], at, d, D)).to(DT), READ[1], at, WIDE).to(DT)
        value = _mapped(low, tl.load(_block(READ[2], at, d, D)).to(DT), READ[3], at, WIDE).to(DT)
        query = tl.load(_rows(Q, entry, head, j, e, q_b, q_h, q_n), mask=real, other=0.0)
        found = tl.dot(_weights(query, key, j, i, rows, COUNT, scale, False).to(DT), value)
        tl.store(_rows(FOUND, entry, head, j, e, f_b, f_h, f_n), found.to(DT), mask=real)


@triton.jit
def static_backward(
    Q, K, V, D_FOUND, SLOTS, SUM, MIXED, DQ, DK, DV, KEPT, SUMS, ASK, OUT, READ, UPDATE, rows, scale, eps, q_b, q_h,
    q_n, f_b, f_h, f_n, d_b, d_h, d_n, PITCH: tl.constexpr, VECTORS: tl.constexpr, COUNT: tl.constexpr,
    HEADS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, R: tl.constexpr, J: tl.constexpr, DT: tl.constexpr,
    WIDE: tl.constexpr, STAGES: tl.constexpr,
):
    """The gradients of queries, keys and values of one batch entry.

    KEPT and SUMS get what those of the weights are made from (`layout.StaticSizes`).
    """
    entry = tl.program_id(0)
    i, j, d, e = tl.arange(0, R), tl.arange(0, J), tl.arange(0, D), tl.arange(0, HEAD)
    held, real = (i < COUNT)[:, None], (j < rows)[:, None]
    line = entry * COUNT + i
    kept, sums = _block(KEPT, line, d, PITCH), SUMS + entry * VECTORS
    memory, hat, rate, gain = _written(
        tl.load(_block(SUM, line, d, D), mask=held, other=0.0).to(WIDE), UPDATE, d, eps, D, WIDE
    )
    low = memory.to(DT)
    tl.store(kept + D, low, mask=held)
    dm = tl.zeros([R, D], WIDE)
    for head in tl.range(0, HEADS, num_stages=STAGES):  # the rows asked the slots
        at = head * HEAD + e
        own = _block(KEPT, line, at, PITCH)
        to_key = tl.load(_block(READ[0], at, d, D)).to(DT)
        to_value = tl.load(_block(READ[2], at, d, D)).to(DT)
        key = _mapped(low, to_key, READ[1], at, WIDE).to(DT)
        value = _mapped(low, to_value, READ[3], at, WIDE).to(DT)
        query = tl.load(_rows(Q, entry, head, j, e, q_b, q_h, q_n), mask=real, other=0.0)
        pull = tl.load(_rows(D_FOUND, entry, head, j, e, f_b, f_h, f_n), mask=real, other=0.0).to(DT)
        weights = _weights(query, key, j, i, rows, COUNT, scale, False)
        of_scores = _scores_back(weights, pull, value, scale, DT)
        tl.store(_rows(DQ, entry, head, j, e, d_b, d_h, d_n), tl.dot(of_scores, key).to(DT), mask=real)
        d_key, d_value = tl.dot(tl.trans(of_scores), query), tl.dot(tl.trans(weights.to(DT)), pull)
        tl.store(sums + 4 * D + at, tl.sum(d_key, 0))
        tl.store(sums + 5 * D + at, tl.sum(d_value, 0))
        d_key, d_value = d_key.to(DT), d_value.to(DT)
        tl.store(own + 2 * D, d_key, mask=held)
        tl.store(own + 3 * D, d_value, mask=held)
        dm += tl.dot(d_key, to_key) + tl.dot(d_value, to_value)
    tl.store(sums + d, tl.sum(dm * hat, 0))
    tl.store(sums + D + d, tl.sum(dm, 0))
    dm = _normalized_back(dm * gain, hat, rate, D)
    tl.store(sums + 3 * D + d, tl.sum(dm, 0))
    candidate = dm.to(DT)
    tl.store(kept + 5 * D, candidate, mask=held)
    low = tl.load(_block(SLOTS, i, d, D), mask=held, other=0.0).to(WIDE).to(DT)
    tl.store(kept, low, mask=held)
    for head in tl.range(0, HEADS, num_stages=STAGES):  # the slots asked the rows
        at = head * HEAD + e
        own = _block(KEPT, line, at, PITCH)
        tl.store(own + 4 * D, tl.load(_block(MIXED, line, at, D), mask=held, other=0.0), mask=held)
        ask = tl.load(_block(ASK[0], at, d, D)).to(DT)
        asked = _mapped(low, ask, ASK[1], at, WIDE).to(DT)
        key = tl.load(_rows(K, entry, head, j, e, q_b, q_h, q_n), mask=real, other=0.0)
        value = tl.load(_rows(V, entry, head, j, e, q_b, q_h, q_n), mask=real, other=0.0)
        pull = tl.dot(candidate, tl.load(_block(OUT[0], d, at, D)).to(DT)).to(DT)
        weights = _weights(asked, key, i, j, COUNT, rows, scale, False)
        of_scores = _scores_back(weights, pull, value, scale, DT)
        d_asked = tl.dot(of_scores, key)
        tl.store(sums + 2 * D + at, tl.sum(d_asked, 0))
        d_asked = d_asked.to(DT)
        tl.store(own + 6 * D, d_asked, mask=held)
        into = _rows(DK, entry, head, j, e, d_b, d_h, d_n)
        tl.store(into, tl.dot(tl.trans(of_scores), asked).to(DT), mask=real)
        into = _rows(DV, entry, head, j, e, d_b, d_h, d_n)
        tl.store(into, tl.dot(tl.trans(weights.to(DT)), pull).to(DT), mask=real)
        dm += tl.dot(d_asked, ask)
    tl.store(_block(sums + 6 * D, i, d, D), dm, mask=held)
