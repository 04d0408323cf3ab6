"""Gradient of a bias that depends on the distance between query and key: sums of the score gradients along diagonals.

One program visits the blocks of one diagonal of blocks, for all batch entries, and keeps its sums in registers: no
atomic operations, so that equal inputs give equal bits. Inside a block of size B, entry (r, c) belongs to the diagonal
c − r; rows are rotated by r so that these entries form columns, and the part that wraps around is summed separately.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.device_functions import (
    dropout_keeps,
    final_scores,
    load_row_stats,
    row_state,
    tile,
    visible,
)

_DATA = [
    "q_len",
    "k_len",
    "heads",
    "group",
    "batches",
    "padded_rows",
    "TABLE_STRIDES",
    "LIST_STRIDES",
    "SEEN_STRIDES",
    "threshold",
]


@triton.jit(do_not_specialize=_DATA)
def of_distances(
    Q, K, V, GRAD, LSE, DELTA, SEED, SEEN, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS, AHEAD, BEHIND,
    Q_STRIDES, K_STRIDES, V_STRIDES, GRAD_STRIDES, SEEN_STRIDES, LIST_STRIDES,
    batches, heads, group, q_len, k_len, padded_rows, scale, cap, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, DROPS: tl.constexpr, HIDES: tl.constexpr,
    HIDES_ROWS: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Write the sums of one diagonal of blocks: AHEAD for c ≥ r, BEHIND for c < r, each (heads, diagonals, B)."""
    across_q, across_k = tl.cdiv(q_len, BLOCK_Q), tl.cdiv(k_len, BLOCK_K)
    diagonals = across_q + across_k - 1
    diagonal, head = tl.program_id(0) % diagonals, tl.program_id(0) // diagonals
    lead = diagonal - (across_q - 1)  # block of keys minus block of queries
    shared = head // group
    wide, across, inside = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_K)
    rotated = (inside[None, :] + tl.arange(0, BLOCK_Q)[:, None]) % BLOCK_K
    wraps = inside[None, :] + tl.arange(0, BLOCK_Q)[:, None] >= BLOCK_K
    ahead, behind = tl.zeros([BLOCK_K], tl.float32), tl.zeros([BLOCK_K], tl.float32)
    first = tl.maximum(0, -lead)
    count = tl.maximum(0, tl.minimum(across_q, across_k - lead) - first)
    for step in range(0, count * batches):
        batch, block = step // count + head * 0, first + step % count
        rows, columns = block * BLOCK_Q + tl.arange(0, BLOCK_Q), (block + lead) * BLOCK_K + inside
        lse = load_row_stats(LSE, batch * heads + head, block * BLOCK_Q, padded_rows, BLOCK_Q, False)
        delta = load_row_stats(DELTA, batch * heads + head, block * BLOCK_Q, padded_rows, BLOCK_Q, False)
        shown, real = rows < q_len, columns < k_len
        safe_rows, safe_columns = tl.minimum(rows, q_len - 1), tl.minimum(columns, k_len - 1)
        seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows[:, None], safe_columns[None, :])
        seen &= shown[:, None] & real[None, :]
        if HIDES_ROWS:
            shown &= lse != float("inf")
        if HIDES:
            there = SEEN + batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
            real &= tl.load(there + columns, mask=real, other=0) != 0
        high, low = batch.to(tl.int64), head.to(tl.int64)
        down, along = rows[:, None].to(tl.int64), columns[None, :].to(tl.int64)
        pointers = Q + high * Q_STRIDES[0] + low * Q_STRIDES[1] + down * Q_STRIDES[2] + wide[None, :]
        query = tile(pointers, shown[:, None], wide[None, :], D, BLOCK_D, False)
        pointers = GRAD + high * GRAD_STRIDES[0] + low * GRAD_STRIDES[1] + down * GRAD_STRIDES[2] + across[None, :]
        grad = tile(pointers, shown[:, None], across[None, :], WIDTH, BLOCK_V, False)
        pointers = K + high * K_STRIDES[0] + shared.to(tl.int64) * K_STRIDES[1] + along * K_STRIDES[2] + wide[:, None]
        key = tile(pointers, real[None, :], wide[:, None], D, BLOCK_D, False)
        pointers = V + high * V_STRIDES[0] + shared.to(tl.int64) * V_STRIDES[1] + along * V_STRIDES[2] + across[:, None]
        value = tile(pointers, real[None, :], across[:, None], WIDTH, BLOCK_V, False)
        scores, _ = final_scores(
            tl.dot(query, key, input_precision=PRECISION), BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS,
            scale, cap, batch, head, safe_rows[:, None], safe_columns[None, :],
        )
        from_values = tl.dot(grad, value, input_precision=PRECISION)
        if DROPS:
            state = row_state(tl.load(SEED), batch, head, safe_rows)[:, None]
            from_values = tl.where(dropout_keeps(state, columns[None, :], threshold), from_values * keep, 0.0)
        grad_scores = tl.where(seen, tl.exp2(scores - lse[:, None]) * (from_values - delta[:, None]), 0.0)
        grad_scores = tl.gather(grad_scores, rotated, 1)
        ahead += tl.sum(tl.where(wraps, 0.0, grad_scores), 0)
        behind += tl.sum(tl.where(wraps, grad_scores, 0.0), 0)
    into = (head * diagonals + diagonal).to(tl.int64) * BLOCK_K + inside
    tl.store(AHEAD + into, ahead)
    tl.store(BEHIND + into, behind)
