"""Reading a memory: elements of a segment attend to the slots before it (and after it) and to their own segment.

One program for each head of each segment. Keys and values of the slots come from `write_forward`; those of the segment
are read where the maps of rows wrote them, so that nothing is joined. Nothing is kept for the backward pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_fast.fused_rows.short_kernels import _rows


@triton.jit
def _slot_lines(entry, part, segments, batch, u, SLOTS: tl.constexpr, DIRECTIONS: tl.constexpr):
    """The lines of (segments,b,DIRECTIONS,SLOTS) that a segment reads: those before it in each direction."""
    side = u // SLOTS
    turn = tl.where(side == 0, part, segments - 1 - part)
    return ((turn * batch + entry) * DIRECTIONS + side) * SLOTS + u % SLOTS


@triton.jit
def _weights_of_both(query, slot_key, key, held, real, i, j, scale, CAUSAL: tl.constexpr):
    """The softmax over slots and elements, in two pieces."""
    slots = tl.where(held[None, :], tl.dot(query, tl.trans(slot_key)) * scale, float("-inf"))
    seen = real[None, :]
    if CAUSAL:
        seen = seen & (j[None, :] <= i[:, None])
    own = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, float("-inf"))
    top = tl.maximum(tl.max(slots, 1), tl.max(own, 1))[:, None]
    slots, own = tl.exp(slots - top), tl.exp(own - top)
    total = (tl.sum(slots, 1) + tl.sum(own, 1))[:, None]
    return slots / total, own / total


@triton.jit
def read_forward(
    Q, K, V, KEYS, VALUES, FOUND, rows, segments, batch, scale, q_b, q_h, q_n, f_b, f_h, f_n,
    SLOTS: tl.constexpr, DIRECTIONS: tl.constexpr, SEGMENT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    D: tl.constexpr, J: tl.constexpr, U: tl.constexpr, CAUSAL: tl.constexpr, DT: tl.constexpr,
):
    """What the elements of one segment read with one head. Q, K and V (b,h,rows,HEAD) have equal strides."""
    head, part = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS % segments
    entry = tl.program_id(0) // HEADS // segments
    j, u, e = tl.arange(0, J), tl.arange(0, U), tl.arange(0, HEAD)
    place, held = part * SEGMENT + j, u < SLOTS * DIRECTIONS
    real = (j < SEGMENT) & (place < rows)
    query = tl.load(_rows(Q, entry, head, place, e, q_b, q_h, q_n), mask=real[:, None], other=0.0)
    key = tl.load(_rows(K, entry, head, place, e, q_b, q_h, q_n), mask=real[:, None], other=0.0)
    value = tl.load(_rows(V, entry, head, place, e, q_b, q_h, q_n), mask=real[:, None], other=0.0)
    line = _slot_lines(entry, part, segments, batch, u, SLOTS, DIRECTIONS)[:, None]
    at = line * D + head * HEAD + e[None, :]
    slot_key = tl.load(KEYS + at, mask=held[:, None], other=0.0)
    slot_value = tl.load(VALUES + at, mask=held[:, None], other=0.0)
    of_slots, own = _weights_of_both(query, slot_key, key, held, real, j, j, scale, CAUSAL)
    found = tl.dot(of_slots.to(DT), slot_value) + tl.dot(own.to(DT), value)
    tl.store(_rows(FOUND, entry, head, place, e, f_b, f_h, f_n), found.to(DT), mask=real[:, None])


@triton.jit
def read_backward(
    Q, K, V, KEYS, VALUES, D_FOUND, DQ, DK, DV, KEPT, rows, segments, batch, scale, q_b, q_h, q_n, f_b, f_h, f_n,
    d_b, d_h, d_n, PITCH: tl.constexpr,
    SLOTS: tl.constexpr, DIRECTIONS: tl.constexpr, SEGMENT: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    D: tl.constexpr, J: tl.constexpr, U: tl.constexpr, CAUSAL: tl.constexpr, DT: tl.constexpr,
):
    """The gradients of queries, keys and values of one segment and head; KEPT gets those of the slots (`layout.py`)."""
    head, part = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS % segments
    entry = tl.program_id(0) // HEADS // segments
    j, u, e = tl.arange(0, J), tl.arange(0, U), tl.arange(0, HEAD)
    place, held = part * SEGMENT + j, u < SLOTS * DIRECTIONS
    real = (j < SEGMENT) & (place < rows)
    query = tl.load(_rows(Q, entry, head, place, e, q_b, q_h, q_n), mask=real[:, None], other=0.0)
    key = tl.load(_rows(K, entry, head, place, e, q_b, q_h, q_n), mask=real[:, None], other=0.0)
    value = tl.load(_rows(V, entry, head, place, e, q_b, q_h, q_n), mask=real[:, None], other=0.0)
    pull = tl.load(_rows(D_FOUND, entry, head, place, e, f_b, f_h, f_n), mask=real[:, None], other=0.0).to(DT)
    line = _slot_lines(entry, part, segments, batch, u, SLOTS, DIRECTIONS)[:, None]
    across = head * HEAD + e[None, :]
    slot_key = tl.load(KEYS + line * D + across, mask=held[:, None], other=0.0)
    slot_value = tl.load(VALUES + line * D + across, mask=held[:, None], other=0.0)
    of_slots, own = _weights_of_both(query, slot_key, key, held, real, j, j, scale, CAUSAL)
    d_slots, d_own = tl.dot(pull, tl.trans(slot_value)), tl.dot(pull, tl.trans(value))
    common = (tl.sum(of_slots * d_slots, 1) + tl.sum(own * d_own, 1))[:, None]
    d_slots = (of_slots * (d_slots - common) * scale).to(DT)
    d_own = (own * (d_own - common) * scale).to(DT)
    kept = KEPT + line * PITCH + across
    tl.store(kept + D, tl.dot(tl.trans(d_slots), query).to(DT), mask=held[:, None])
    tl.store(kept + 2 * D, tl.dot(tl.trans(of_slots.to(DT)), pull).to(DT), mask=held[:, None])
    into = _rows(DQ, entry, head, place, e, d_b, d_h, d_n)
    tl.store(into, (tl.dot(d_slots, slot_key) + tl.dot(d_own, key)).to(DT), mask=real[:, None])
    into = _rows(DK, entry, head, place, e, d_b, d_h, d_n)
    tl.store(into, tl.dot(tl.trans(d_own), query).to(DT), mask=real[:, None])
    into = _rows(DV, entry, head, place, e, d_b, d_h, d_n)
    tl.store(into, tl.dot(tl.trans(own.to(DT)), pull).to(DT), mask=real[:, None])
