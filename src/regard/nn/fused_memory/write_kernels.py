"""Writing segments into a memory, one program for each batch entry and direction: one kernel forward, one backward.

With slots M_0 (m,D), and keys k and values v of the writer for the segment of each turn t (direction 0 takes segments
from the first on, direction 1 from the last backwards), for each head:

    q = W_q M_t + b_q,   w = softmax(scale · q kᵀ) over the real rows of the segment
    C = W_o [w v] + b_o

    gated:  r = σ(W_ir C + b_ir + W_hr M_t + b_hr),   z likewise,   n = tanh(W_in C + b_in + r ⊙ (W_hn M_t + b_hn))
            M_{t+1} = (1 − z) ⊙ n + z ⊙ M_t
    else:   M_{t+1} = gain ⊙ norm(M_t + C) + shift

and for every t, also the last, which no segment is written into, the keys W_k M_t + b_k and values W_v M_t + b_v that
elements read. A program holds its slots in registers from the first turn to the last. Backward computes a turn again
from M_t, and keeps the factors of the weights' gradients (`layout.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.nn.fused_rows.kernels import _block, _normalized, _normalized_back
from regard.nn.fused_rows.short_kernels import _rows, _weights


@triton.jit
def _mapped(x, W, B, d, PART: tl.constexpr, D: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr):
    """Rows (·,D) through the PART-th square of a weight (·,D), plus its bias."""
    weight = tl.load(_block(W, PART * D + d, d, D)).to(DT)
    return tl.dot(x, tl.trans(weight)) + tl.load(B + PART * D + d).to(WIDE)[None, :]


@triton.jit
def _pulled(dy, W, d, PART: tl.constexpr, D: tl.constexpr, DT: tl.constexpr):
    """The gradient of the rows from that of `_mapped`."""
    return tl.dot(dy, tl.load(_block(W, PART * D + d, d, D)).to(DT))


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """Without overflow, as tl.exp has only finite results for numbers that are not positive."""
    small = tl.exp(-2.0 * tl.abs(x))
    found = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -found, found)


@triton.jit
def _segment_at(turn, segments, side):
    return tl.where(side == 0, turn, segments - 1 - turn)


@triton.jit
def _gates(candidate, low, UPDATE, d, D: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr):
    """r, z, n, and what r multiplies. UPDATE is (W_i, W_h, b_i, b_h), each of three parts: r, z, n."""
    r = _mapped(candidate, UPDATE[0], UPDATE[2], d, 0, D, DT, WIDE)
    r = _sigmoid(r + _mapped(low, UPDATE[1], UPDATE[3], d, 0, D, DT, WIDE))
    z = _mapped(candidate, UPDATE[0], UPDATE[2], d, 1, D, DT, WIDE)
    z = _sigmoid(z + _mapped(low, UPDATE[1], UPDATE[3], d, 1, D, DT, WIDE))
    inner = _mapped(low, UPDATE[1], UPDATE[3], d, 2, D, DT, WIDE)
    n = _tanh(_mapped(candidate, UPDATE[0], UPDATE[2], d, 2, D, DT, WIDE) + r * inner)
    return r, z, n, inner


@triton.jit
def _show(
    m, MEMORY, KEYS, VALUES, READ, line, i, d, SLOTS: tl.constexpr, D: tl.constexpr, DT: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Store the slots, and the keys and values that elements read. READ is (W_k, b_k, W_v, b_v)."""
    real, low = (i < SLOTS)[:, None], m.to(DT)
    tl.store(_block(MEMORY, line + i, d, D), m, mask=real)
    tl.store(
        _block(KEYS, line + i, d, D), _mapped(low, READ[0], READ[1], d, 0, D, DT, WIDE).to(DT), mask=real
    )
    tl.store(
        _block(VALUES, line + i, d, D), _mapped(low, READ[2], READ[3], d, 0, D, DT, WIDE).to(DT), mask=real
    )


@triton.jit
def write_forward(
    K, V, STARTS, MEMORY, KEYS, VALUES, ASK, OUT, READ, UPDATE, rows, segments, scale, eps, k_b, k_h, k_n,
    SLOTS: tl.constexpr, DIRECTIONS: tl.constexpr, SEGMENT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, J: tl.constexpr, GATED: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """All turns of one batch entry in one direction.

    K and V (b,h,rows,HEAD) have equal strides. STARTS are the slots M_0 of each direction, ASK is (W_q, b_q), OUT
    (W_o, b_o). MEMORY, KEYS and VALUES are (segments,b,DIRECTIONS,SLOTS,D).
    """
    entry, side = tl.program_id(0) // DIRECTIONS, tl.program_id(0) % DIRECTIONS
    i, j, d, e = tl.arange(0, R), tl.arange(0, J), tl.arange(0, D), tl.arange(0, HEAD)
    mine = (i < tl.where(side == 0, SLOTS, 0))[:, None]
    m = tl.load(_block(STARTS[0], i, d, D), mask=mine, other=0.0).to(WIDE)
    mine = (i < tl.where(side == 0, 0, SLOTS))[:, None]
    m += tl.load(_block(STARTS[DIRECTIONS - 1], i, d, D), mask=mine, other=0.0).to(WIDE)
    line = tl.program_id(0) * SLOTS
    _show(m, MEMORY, KEYS, VALUES, READ, line, i, d, SLOTS, D, DT, WIDE)
    for turn in tl.range(0, segments - 1, num_stages=1):
        first = _segment_at(turn, segments, side) * SEGMENT
        count = tl.minimum(SEGMENT, rows - first)
        low = m.to(DT)
        candidate = tl.zeros([R, D], WIDE) + tl.load(OUT[1] + d).to(WIDE)[None, :]
        for head in tl.range(0, HEADS, num_stages=STAGES):
            at = head * HEAD + e
            q = tl.dot(low, tl.trans(tl.load(_block(ASK[0], at, d, D)).to(DT)))
            q = (q + tl.load(ASK[1] + at).to(WIDE)[None, :]).to(DT)
            seen = (j < count)[:, None]
            key = tl.load(_rows(K, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            value = tl.load(_rows(V, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            mixed = tl.dot(_weights(q, key, i, j, SLOTS, count, scale, False).to(DT), value).to(DT)
            candidate += tl.dot(mixed, tl.trans(tl.load(_block(OUT[0], d, at, D)).to(DT)))
        if GATED:
            _, z, n, _ = _gates(candidate.to(DT), low, UPDATE, d, D, DT, WIDE)
            m = (1.0 - z) * n + z * m
        else:
            hat, _ = _normalized(m + candidate, eps, D)
            m = hat * tl.load(UPDATE[0] + d).to(WIDE)[None, :] + tl.load(UPDATE[1] + d).to(WIDE)[None, :]
        line += tl.num_programs(0) * SLOTS
        _show(m, MEMORY, KEYS, VALUES, READ, line, i, d, SLOTS, D, DT, WIDE)


@triton.jit
def _shown_back(
    dm, sum_k, sum_v, MEMORY, KEPT, READ, line, i, d, PITCH: tl.constexpr, SLOTS: tl.constexpr, D: tl.constexpr,
    DT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add what the elements send back through the keys and values of these slots; keep the slots as a factor."""
    real = (i < SLOTS)[:, None]
    kept = _block(KEPT, line + i, d, PITCH)
    m = tl.load(_block(MEMORY, line + i, d, D), mask=real, other=0.0).to(WIDE)
    tl.store(kept, m.to(DT), mask=real)
    dk, dv = tl.load(kept + D, mask=real, other=0.0), tl.load(kept + 2 * D, mask=real, other=0.0)
    dm += _pulled(dk, READ[0], d, 0, D, DT) + _pulled(dv, READ[2], d, 0, D, DT)
    return dm, sum_k + tl.sum(dk.to(WIDE), 0), sum_v + tl.sum(dv.to(WIDE), 0), m


@triton.jit
def write_backward(
    K, V, DK, DV, MEMORY, KEPT, SUMS, ASK, OUT, READ, UPDATE, rows, segments, scale, eps, k_b, k_h, k_n, d_g, d_b,
    PITCH: tl.constexpr, VECTORS: tl.constexpr, SHARED: tl.constexpr, SLOTS: tl.constexpr, DIRECTIONS: tl.constexpr,
    SEGMENT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    J: tl.constexpr, GATED: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The turns of one batch entry in one direction, from the last to the first.

    The gradients of the keys and values that elements read are in KEPT, where the other factors are added. DK and DV
    (·,b,rows,D) have the stride d_g between directions. SHARED: there are two segments and two directions, each of
    which writes one segment, so both have one place; else each direction sets the segment that it does not write to 0.
    """
    entry, side = tl.program_id(0) // DIRECTIONS, tl.program_id(0) % DIRECTIONS
    i, j, d, e = tl.arange(0, R), tl.arange(0, J), tl.arange(0, D), tl.arange(0, HEAD)
    real = (i < SLOTS)[:, None]
    place = entry * d_b + side * d_g
    zero = tl.zeros([R, D], WIDE)
    none = tl.sum(zero, 0)
    sum_q, sum_o, sum_k, sum_v, sum_r, sum_z, sum_n, sum_h = none, none, none, none, none, none, none, none
    last = segments - 1
    line = (last * tl.num_programs(0) + tl.program_id(0)) * SLOTS
    if not SHARED:
        first = _segment_at(last, segments, side) * SEGMENT
        unseen = (j < tl.minimum(SEGMENT, rows - first))[:, None]
        tl.store(_block(DK + place, first + j, d, D), tl.zeros([J, D], DT), mask=unseen)
        tl.store(_block(DV + place, first + j, d, D), tl.zeros([J, D], DT), mask=unseen)
    dm, sum_k, sum_v, _ = _shown_back(
        zero, sum_k, sum_v, MEMORY, KEPT, READ, line, i, d, PITCH, SLOTS, D, DT, WIDE
    )
    for back in tl.range(0, last, num_stages=1):
        turn = last - 1 - back
        line -= tl.num_programs(0) * SLOTS
        first = _segment_at(turn, segments, side) * SEGMENT
        count = tl.minimum(SEGMENT, rows - first)
        m = tl.load(_block(MEMORY, line + i, d, D), mask=real, other=0.0).to(WIDE)
        low = m.to(DT)
        # The candidate again; mixed values and queries by head are kept.
        candidate = tl.zeros([R, D], WIDE) + tl.load(OUT[1] + d).to(WIDE)[None, :]
        for head in tl.range(0, HEADS, num_stages=STAGES):
            at = head * HEAD + e
            own = _block(KEPT, line + i, at, PITCH)
            q = tl.dot(low, tl.trans(tl.load(_block(ASK[0], at, d, D)).to(DT)))
            q = (q + tl.load(ASK[1] + at).to(WIDE)[None, :]).to(DT)
            seen = (j < count)[:, None]
            key = tl.load(_rows(K, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            value = tl.load(_rows(V, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            mixed = tl.dot(_weights(q, key, i, j, SLOTS, count, scale, False).to(DT), value).to(DT)
            tl.store(own + 3 * D, mixed, mask=real)
            tl.store(own + 6 * D, q, mask=real)
            candidate += tl.dot(mixed, tl.trans(tl.load(_block(OUT[0], d, at, D)).to(DT)))
        kept = _block(KEPT, line + i, d, PITCH)
        if GATED:
            narrow = candidate.to(DT)
            r, z, n, inner = _gates(narrow, low, UPDATE, d, D, DT, WIDE)
            d_n = dm * (1.0 - z) * (1.0 - n * n)
            d_r = d_n * inner * r * (1.0 - r)
            d_z = dm * (m - n) * z * (1.0 - z)
            d_h = d_n * r
            sum_r, sum_z = sum_r + tl.sum(d_r, 0), sum_z + tl.sum(d_z, 0)
            sum_n, sum_h = sum_n + tl.sum(d_n, 0), sum_h + tl.sum(d_h, 0)
            d_r, d_z, d_n, d_h = d_r.to(DT), d_z.to(DT), d_n.to(DT), d_h.to(DT)
            tl.store(kept + 7 * D, narrow, mask=real)
            tl.store(kept + 8 * D, d_r, mask=real)
            tl.store(kept + 9 * D, d_z, mask=real)
            tl.store(kept + 10 * D, d_n, mask=real)
            tl.store(kept + 11 * D, d_h, mask=real)
            d_candidate = _pulled(d_r, UPDATE[0], d, 0, D, DT) + _pulled(d_z, UPDATE[0], d, 1, D, DT)
            d_candidate += _pulled(d_n, UPDATE[0], d, 2, D, DT)
            dm = dm * z + _pulled(d_r, UPDATE[1], d, 0, D, DT) + _pulled(d_z, UPDATE[1], d, 1, D, DT)
            dm += _pulled(d_h, UPDATE[1], d, 2, D, DT)
        else:
            hat, rate = _normalized(m + candidate, eps, D)
            sum_r, sum_z = sum_r + tl.sum(dm * hat, 0), sum_z + tl.sum(dm, 0)
            dm = _normalized_back(dm * tl.load(UPDATE[0] + d).to(WIDE)[None, :], hat, rate, D)
            d_candidate = dm
        sum_o += tl.sum(d_candidate, 0)
        d_candidate = d_candidate.to(DT)
        tl.store(kept + 4 * D, d_candidate, mask=real)
        tl.debug_barrier()  # the queries are read as other threads stored them
        for head in tl.range(0, HEADS, num_stages=STAGES):
            at = head * HEAD + e
            own = _block(KEPT, line + i, at, PITCH)
            q = tl.load(own + 6 * D, mask=real, other=0.0)
            seen = (j < count)[:, None]
            key = tl.load(_rows(K, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            value = tl.load(_rows(V, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            weights = _weights(q, key, i, j, SLOTS, count, scale, False)
            pull = tl.dot(d_candidate, tl.load(_block(OUT[0], d, at, D)).to(DT)).to(DT)
            of_weights = tl.dot(pull, tl.trans(value))
            of_scores = (weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * scale).to(DT)
            tl.store(own + 5 * D, tl.dot(of_scores, key).to(DT), mask=real)
            into = _block(DK + place, first + j, at, D)
            tl.store(into, tl.dot(tl.trans(of_scores), q).to(DT), mask=seen)
            into = _block(DV + place, first + j, at, D)
            tl.store(into, tl.dot(tl.trans(weights.to(DT)), pull).to(DT), mask=seen)
        tl.debug_barrier()  # so are their gradients
        dq = tl.load(_block(KEPT + 5 * D, line + i, d, PITCH), mask=real, other=0.0)
        sum_q += tl.sum(dq.to(WIDE), 0)
        dm += _pulled(dq, ASK[0], d, 0, D, DT)
        dm, sum_k, sum_v, _ = _shown_back(
            dm, sum_k, sum_v, MEMORY, KEPT, READ, line, i, d, PITCH, SLOTS, D, DT, WIDE
        )
    sums = SUMS + tl.program_id(0) * VECTORS + d
    tl.store(sums, sum_q)
    tl.store(sums + D, sum_o)
    tl.store(sums + 2 * D, sum_k)
    tl.store(sums + 3 * D, sum_v)
    tl.store(sums + 4 * D, sum_r)
    tl.store(sums + 5 * D, sum_z)
    if GATED:
        tl.store(sums + 6 * D, sum_n)
        tl.store(sums + 7 * D, sum_h)
    slots = SUMS + tl.program_id(0) * VECTORS + (8 * D if GATED else 6 * D)
    for each in tl.static_range(DIRECTIONS):
        into = _block(slots + each * SLOTS * D, i, d, D)
        tl.store(into, tl.where(side == each, dm, 0.0), mask=real)
