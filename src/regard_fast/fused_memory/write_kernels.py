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

from regard_fast.fused_rows.kernels import _block, _normalized, _normalized_back
from regard_fast.fused_rows.short_kernels import _rows, _weights


@triton.jit
def _mapped(x, weight, B, at, WIDE: tl.constexpr):
    """Rows (·,D) through some rows (T,D) of a weight, plus these entries of its bias."""
    return tl.dot(x, tl.trans(weight)) + tl.load(B + at).to(WIDE)[None, :]


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
def _show(
    m, MEMORY, KEYS, VALUES, READ, line, i, d, t, SLOTS: tl.constexpr, D: tl.constexpr, DT: tl.constexpr,
    WIDE: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):
    """Store the slots, and the keys and values that elements read. READ is (W_k, b_k, W_v, b_v)."""
    real, low = (i < SLOTS)[:, None], m.to(DT)
    tl.store(_block(MEMORY, line + i, d, D), m, mask=real)
    for c in tl.range(0, D, TILE, num_stages=STAGES):
        y = _mapped(low, tl.load(_block(READ[0], c + t, d, D)).to(DT), READ[1], c + t, WIDE)
        tl.store(_block(KEYS, line + i, c + t, D), y.to(DT), mask=real)
        y = _mapped(low, tl.load(_block(READ[2], c + t, d, D)).to(DT), READ[3], c + t, WIDE)
        tl.store(_block(VALUES, line + i, c + t, D), y.to(DT), mask=real)


@triton.jit
def write_forward(
    K, V, STARTS, MEMORY, KEYS, VALUES, ASK, OUT, READ, UPDATE, rows, segments, scale, eps, k_b, k_h, k_n,
    SLOTS: tl.constexpr, DIRECTIONS: tl.constexpr, SEGMENT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, J: tl.constexpr, GATED: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr, HEAD_STAGES: tl.constexpr,
):
    """All turns of one batch entry in one direction.

    K and V (b,h,rows,HEAD) have equal strides. STARTS are the slots M_0 of each direction, ASK is (W_q, b_q), OUT
    (W_o, b_o). MEMORY, KEYS and VALUES are (segments,b,DIRECTIONS,SLOTS,D).
    """
    entry, side = tl.program_id(0) // DIRECTIONS, tl.program_id(0) % DIRECTIONS
    i, j, d, e, t = tl.arange(0, R), tl.arange(0, J), tl.arange(0, D), tl.arange(0, HEAD), tl.arange(0, TILE)
    mine = (i < tl.where(side == 0, SLOTS, 0))[:, None]
    m = tl.load(_block(STARTS[0], i, d, D), mask=mine, other=0.0).to(WIDE)
    mine = (i < tl.where(side == 0, 0, SLOTS))[:, None]
    m += tl.load(_block(STARTS[DIRECTIONS - 1], i, d, D), mask=mine, other=0.0).to(WIDE)
    line, step = tl.program_id(0) * SLOTS, tl.num_programs(0) * SLOTS
    real = (i < SLOTS)[:, None]
    _show(m, MEMORY, KEYS, VALUES, READ, line, i, d, t, SLOTS, D, DT, WIDE, TILE, STAGES)
    for turn in tl.range(0, segments - 1, num_stages=1):
        first = _segment_at(turn, segments, side) * SEGMENT
        count = tl.minimum(SEGMENT, rows - first)
        low = m.to(DT)
        candidate = tl.zeros([R, D], WIDE) + tl.load(OUT[1] + d).to(WIDE)[None, :]
        for head in tl.range(0, HEADS, num_stages=HEAD_STAGES):
            at = head * HEAD + e
            q = tl.dot(low, tl.trans(tl.load(_block(ASK[0], at, d, D)).to(DT)))
            q = (q + tl.load(ASK[1] + at).to(WIDE)[None, :]).to(DT)
            seen = (j < count)[:, None]
            key = tl.load(_rows(K, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            value = tl.load(_rows(V, entry, head, first + j, e, k_b, k_h, k_n), mask=seen, other=0.0)
            mixed = tl.dot(_weights(q, key, i, j, SLOTS, count, scale, False).to(DT), value).to(DT)
            candidate += tl.dot(mixed, tl.trans(tl.load(_block(OUT[0], d, at, D)).to(DT)))
        if GATED:
            narrow = candidate.to(DT)
            tl.debug_barrier()  # the slots are read as other threads stored them
            for c in tl.range(0, D, TILE, num_stages=STAGES):
                at = c + t
                r = _mapped(narrow, tl.load(_block(UPDATE[0], at, d, D)).to(DT), UPDATE[2], at, WIDE)
                r += _mapped(low, tl.load(_block(UPDATE[1], at, d, D)).to(DT), UPDATE[3], at, WIDE)
                inner = _mapped(low, tl.load(_block(UPDATE[1], 2 * D + at, d, D)).to(DT), UPDATE[3], 2 * D + at, WIDE)
                n = _mapped(narrow, tl.load(_block(UPDATE[0], 2 * D + at, d, D)).to(DT), UPDATE[2], 2 * D + at, WIDE)
                n = _tanh(n + _sigmoid(r) * inner)
                z = _mapped(narrow, tl.load(_block(UPDATE[0], D + at, d, D)).to(DT), UPDATE[2], D + at, WIDE)
                z += _mapped(low, tl.load(_block(UPDATE[1], D + at, d, D)).to(DT), UPDATE[3], D + at, WIDE)
                z = _sigmoid(z)
                old = tl.load(_block(MEMORY, line + i, at, D), mask=real, other=0.0)
                tl.store(_block(MEMORY, line + step + i, at, D), (1.0 - z) * n + z * old, mask=real)
            tl.debug_barrier()
            m = tl.load(_block(MEMORY, line + step + i, d, D), mask=real, other=0.0)
        else:
            hat, _ = _normalized(m + candidate, eps, D)
            m = hat * tl.load(UPDATE[0] + d).to(WIDE)[None, :] + tl.load(UPDATE[1] + d).to(WIDE)[None, :]
        line += step
        _show(m, MEMORY, KEYS, VALUES, READ, line, i, d, t, SLOTS, D, DT, WIDE, TILE, STAGES)


@triton.jit
def _shown_back(
    dm, MEMORY, KEPT, READ, line, i, d, t, PITCH: tl.constexpr, SLOTS: tl.constexpr, D: tl.constexpr, DT: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr,
):
    """Add what the elements send back through the keys and values of these slots; keep the slots as a factor."""
    real = (i < SLOTS)[:, None]
    m = tl.load(_block(MEMORY, line + i, d, D), mask=real, other=0.0)
    tl.store(_block(KEPT, line + i, d, PITCH), m.to(DT), mask=real)
    for c in tl.range(0, D, TILE, num_stages=STAGES):
        own = _block(KEPT, line + i, c + t, PITCH)
        dk, dv = tl.load(own + D, mask=real, other=0.0), tl.load(own + 2 * D, mask=real, other=0.0)
        dm += tl.dot(dk, tl.load(_block(READ[0], c + t, d, D)).to(DT))
        dm += tl.dot(dv, tl.load(_block(READ[2], c + t, d, D)).to(DT))
    return dm


@triton.jit
def write_backward(
    K, V, DK, DV, MEMORY, KEPT, SUMS, SCRATCH, ASK, OUT, READ, UPDATE, rows, segments, scale, eps, k_b, k_h, k_n, d_g,
    d_b, PITCH: tl.constexpr, VECTORS: tl.constexpr, SHARED: tl.constexpr, SLOTS: tl.constexpr,
    DIRECTIONS: tl.constexpr, SEGMENT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, J: tl.constexpr, GATED: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr, HEAD_STAGES: tl.constexpr,
):
    """The turns of one batch entry in one direction, from the last to the first.

    The gradients of the keys and values that elements read are in KEPT, where the other factors are added; SUMS gets
    those of gain and shift, and of the slots before the first turn. DK and DV (·,b,rows,D) have the stride d_g between
    directions. SHARED: there are two segments and two directions, each of which writes one segment, so both have one
    place; else each direction sets the segment that it does not write to 0. SCRATCH (programs,2,SLOTS,D) holds
    gradients of slots that are read in tiles.
    """
    entry, side = tl.program_id(0) // DIRECTIONS, tl.program_id(0) % DIRECTIONS
    i, j, d, e, t = tl.arange(0, R), tl.arange(0, J), tl.arange(0, D), tl.arange(0, HEAD), tl.arange(0, TILE)
    SCRATCH += tl.program_id(0) * 2 * SLOTS * D
    real = (i < SLOTS)[:, None]
    place = entry * d_b + side * d_g
    zero = tl.zeros([R, D], WIDE)
    none = tl.sum(zero, 0)
    d_gain, d_shift = none, none
    last = segments - 1
    line = (last * tl.num_programs(0) + tl.program_id(0)) * SLOTS
    if not SHARED:
        first = _segment_at(last, segments, side) * SEGMENT
        unseen = (j < tl.minimum(SEGMENT, rows - first))[:, None]
        tl.store(_block(DK + place, first + j, d, D), tl.zeros([J, D], DT), mask=unseen)
        tl.store(_block(DV + place, first + j, d, D), tl.zeros([J, D], DT), mask=unseen)
    dm = _shown_back(zero, MEMORY, KEPT, READ, line, i, d, t, PITCH, SLOTS, D, DT, TILE, STAGES)
    for back in tl.range(0, last, num_stages=1):
        turn = last - 1 - back
        line -= tl.num_programs(0) * SLOTS
        first = _segment_at(turn, segments, side) * SEGMENT
        count = tl.minimum(SEGMENT, rows - first)
        m = tl.load(_block(MEMORY, line + i, d, D), mask=real, other=0.0).to(WIDE)
        low = m.to(DT)
        # The candidate again; mixed values and queries by head are kept.
        candidate = tl.zeros([R, D], WIDE) + tl.load(OUT[1] + d).to(WIDE)[None, :]
        for head in tl.range(0, HEADS, num_stages=HEAD_STAGES):
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
            tl.store(kept + 7 * D, narrow, mask=real)
            tl.store(_block(SCRATCH, i, d, D), dm, mask=real)
            d_candidate, through = tl.zeros([R, D], WIDE), tl.zeros([R, D], WIDE)
            tl.debug_barrier()  # the gradient is read as other threads stored it
            for c in tl.range(0, D, TILE, num_stages=STAGES):
                at = c + t
                w_r = tl.load(_block(UPDATE[0], at, d, D)).to(DT)
                u_r = tl.load(_block(UPDATE[1], at, d, D)).to(DT)
                w_z = tl.load(_block(UPDATE[0], D + at, d, D)).to(DT)
                u_z = tl.load(_block(UPDATE[1], D + at, d, D)).to(DT)
                w_n = tl.load(_block(UPDATE[0], 2 * D + at, d, D)).to(DT)
                u_n = tl.load(_block(UPDATE[1], 2 * D + at, d, D)).to(DT)
                r = _sigmoid(_mapped(narrow, w_r, UPDATE[2], at, WIDE) + _mapped(low, u_r, UPDATE[3], at, WIDE))
                z = _mapped(narrow, w_z, UPDATE[2], D + at, WIDE) + _mapped(low, u_z, UPDATE[3], D + at, WIDE)
                z = _sigmoid(z)
                inner = _mapped(low, u_n, UPDATE[3], 2 * D + at, WIDE)
                n = _tanh(_mapped(narrow, w_n, UPDATE[2], 2 * D + at, WIDE) + r * inner)
                pull = tl.load(_block(SCRATCH, i, at, D), mask=real, other=0.0)
                old = tl.load(_block(MEMORY, line + i, at, D), mask=real, other=0.0)
                d_n = pull * (1.0 - z) * (1.0 - n * n)
                d_r = (d_n * inner * r * (1.0 - r)).to(DT)
                d_z = (pull * (old - n) * z * (1.0 - z)).to(DT)
                d_h, d_n = (d_n * r).to(DT), d_n.to(DT)
                tl.store(_block(SCRATCH + SLOTS * D, i, at, D), pull * z, mask=real)
                own = _block(KEPT, line + i, at, PITCH)
                tl.store(own + 8 * D, d_r, mask=real)
                tl.store(own + 9 * D, d_z, mask=real)
                tl.store(own + 10 * D, d_n, mask=real)
                tl.store(own + 11 * D, d_h, mask=real)
                d_candidate += tl.dot(d_r, w_r) + tl.dot(d_z, w_z) + tl.dot(d_n, w_n)
                through += tl.dot(d_r, u_r) + tl.dot(d_z, u_z) + tl.dot(d_h, u_n)
            tl.debug_barrier()
            dm = through + tl.load(_block(SCRATCH + SLOTS * D, i, d, D), mask=real, other=0.0)
        else:
            hat, rate = _normalized(m + candidate, eps, D)
            d_gain, d_shift = d_gain + tl.sum(dm * hat, 0), d_shift + tl.sum(dm, 0)
            dm = _normalized_back(dm * tl.load(UPDATE[0] + d).to(WIDE)[None, :], hat, rate, D)
            d_candidate = dm
        d_candidate = d_candidate.to(DT)
        tl.store(kept + 4 * D, d_candidate, mask=real)
        tl.debug_barrier()  # the queries are read as other threads stored them
        for head in tl.range(0, HEADS, num_stages=HEAD_STAGES):
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
        for c in tl.range(0, D, TILE, num_stages=STAGES):
            dq = tl.load(_block(KEPT + 5 * D, line + i, c + t, PITCH), mask=real, other=0.0)
            dm += tl.dot(dq, tl.load(_block(ASK[0], c + t, d, D)).to(DT))
        dm = _shown_back(dm, MEMORY, KEPT, READ, line, i, d, t, PITCH, SLOTS, D, DT, TILE, STAGES)
    SUMS += tl.program_id(0) * VECTORS
    if not GATED:
        tl.store(SUMS + d, d_gain)
        tl.store(SUMS + D + d, d_shift)
        SUMS += 2 * D
    for each in tl.static_range(DIRECTIONS):
        into = _block(SUMS + each * SLOTS * D, i, d, D)
        tl.store(into, tl.where(side == each, dm, 0.0), mask=real)
