"""Gradients of queries, weight and keys from the gradients ds of a strip of additive scores.

Each thread holds some dimensions of some rows and walks over the rows of the other side, so that no sum crosses
threads before the end. Two rows of the other side share one reciprocal.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.additive.pairs import block_of, exponentials, is_fast, is_small, reciprocal, tanh
from regard.implementations.triton.launch.block_schedule import key_blocks, query_blocks
from regard.implementations.triton.launch.device_functions import kind

_LENGTHS = [
    "heads", "group", "q_len", "k_len", "first_head", "first_block", "row_blocks", "TABLE_STRIDES", "LIST_STRIDES",
    "edges", "splits", "reach",
]


@triton.jit(do_not_specialize=_LENGTHS)
def of_additive_queries(
    STRIP, Q, K, WEIGHT, POWERS, EXPM1, PARTS, OF_WEIGHT, LARGEST_Q, LARGEST_K, LIST, COUNTS, TABLES, TABLE_STRIDES,
    LIST_STRIDES, Q_STRIDES, K_STRIDES, weight_stride, heads, group, q_len, k_len, first_head, first_block,
    row_blocks, splits, reach, scale,
    FORM: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, GPU: tl.constexpr,
):
    """Σ over some keys of ds·(1 − tanh²), for queries, and of ds·tanh, for the weight, in some dimensions."""
    COLUMNS: tl.constexpr = WIDE // BLOCK_D
    column, rest = tl.program_id(0) % COLUMNS, tl.program_id(0) // COLUMNS
    split, line = rest % splits, rest // splits
    block, both = first_block + line % row_blocks, first_head + line // row_blocks
    batch, head = both // heads, both % heads
    shared = batch * (heads // group) + head // group
    k_blocks, q_blocks = tl.cdiv(k_len, BLOCK_K), tl.cdiv(q_len, BLOCK_Q)
    rows, across = block * BLOCK_Q + tl.arange(0, BLOCK_Q), column * BLOCK_D + tl.arange(0, BLOCK_D)
    queries = Q + batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
    queries += rows[:, None].to(tl.int64) * Q_STRIDES[2] + across[None, :]
    query = tl.load(queries, mask=(rows < q_len)[:, None] & (across < D)[None, :], other=0.0).to(tl.float32)
    of_queries = tl.load(LARGEST_Q + both * q_blocks + block)
    power, expm1 = exponentials(2.0 * tl.where(tl.abs(query) <= 20.0, query, 0.0))
    left = tl.where(is_small(of_queries), expm1, power)
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    partial, full, first, before, full_first = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, tl.minimum(rows, q_len - 1), k_len, BLOCK_K
    )
    grad_query = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    grad_weight = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    inside = (line * BLOCK_Q + tl.arange(0, BLOCK_Q)) * (k_blocks * BLOCK_K)
    for step in tl.range(split * reach, tl.minimum((split + 1) * reach, partial + full)):
        start = block_of(FORM, LIST, step, first, before, full_first, full) * BLOCK_K
        slopes = STRIP + inside + start
        of_keys = tl.load(LARGEST_K + shared * k_blocks + start // BLOCK_K)
        if is_fast(of_queries, of_keys):
            offset = (shared.to(tl.int64) * (k_blocks * BLOCK_K) + start) * WIDE
            powers, lesses = POWERS + offset + across, EXPM1 + offset + across
            if is_small(of_queries):
                grad_query, grad_weight = _along_keys(
                    grad_query, grad_weight, left, slopes, powers, lesses, WIDE, BLOCK_K, True, GPU
                )
            else:
                grad_query, grad_weight = _along_keys(
                    grad_query, grad_weight, left, slopes, powers, lesses, WIDE, BLOCK_K, False, GPU
                )
        else:
            keys = K + batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1] + across
            # A zero that the compiler cannot fold keeps it from holding these pointers in registers.
            again = Q + batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1] + across[None, :]
            again += (rows + (of_keys < 0.0).to(tl.int32))[:, None].to(tl.int64) * Q_STRIDES[2]
            again = tl.load(again, mask=(rows < q_len)[:, None] & (across < D)[None, :], other=0.0).to(tl.float32)
            inverse = tl.where(is_small(of_queries), 4.0, 1.0 / left)
            half = tl.where(is_small(of_queries), 1.0, 0.5)
            for one in tl.range(0, BLOCK_K):
                at = start + one
                slope = tl.load(slopes + one)[:, None]
                real = across < tl.where(at < k_len, D, 0)
                key = tl.load(keys + at.to(tl.int64) * K_STRIDES[2], mask=real, other=0.0)
                # A hidden entry may be NaN; a visible NaN has already made the slope NaN.
                curve, steep = tanh(again + key.to(tl.float32)[None, :], GPU)
                grad_weight += tl.where(slope == 0.0, 0.0, slope * curve * half)
                grad_query += tl.where(slope == 0.0, 0.0, slope * steep * inverse)
    weight = tl.load(WEIGHT + head * weight_stride + across, mask=across < D, other=0.0).to(tl.float32) * scale
    grad_query *= tl.where(is_small(of_queries), 1.0, 4.0 * left)
    grad_weight *= tl.where(is_small(of_queries), 1.0, 2.0)
    lines = tl.num_programs(0) // (COLUMNS * splits)
    into = PARTS + (split * lines + line).to(tl.int64) * BLOCK_Q * WIDE
    tl.store(into + tl.arange(0, BLOCK_Q)[:, None] * WIDE + across[None, :], grad_query * weight[None, :])
    tl.store(OF_WEIGHT + (line * splits + split).to(tl.int64) * WIDE + across, tl.sum(grad_weight, 0) * scale)


@triton.jit
def _along_keys(
    grad_query, grad_weight, left, slopes, powers, lesses, WIDE: tl.constexpr, BLOCK_K: tl.constexpr,
    SMALL: tl.constexpr, GPU: tl.constexpr,
):
    """Add what the keys of one block contribute, two at a time.

    1 − tanh² is 4x / (x + 1)², x = e^{2q}·e^{2k}, which cancels nowhere, and tanh is 1 − 2 / (x + 1); the factors
    4·e^{2q} and 2 are left for later. Where rows are small, tanh comes first.
    """
    for _two in tl.range(0, BLOCK_K, 2, loop_unroll_factor=2):
        right_1, right_2 = tl.load(powers)[None, :], tl.load(powers + WIDE)[None, :]
        slope_1, slope_2 = tl.load(slopes)[:, None], tl.load(slopes + 1)[:, None]
        if SMALL:
            above_1 = left * right_1 + tl.load(lesses)[None, :]
            above_2 = left * right_2 + tl.load(lesses + WIDE)[None, :]
            below_1, below_2 = above_1 + 2.0, above_2 + 2.0
            shared = reciprocal(below_1 * below_2, GPU)
            curve_1, curve_2 = above_1 * (shared * below_2), above_2 * (shared * below_1)
            grad_query += slope_1 * (1.0 - curve_1 * curve_1)
            grad_query += slope_2 * (1.0 - curve_2 * curve_2)
        else:
            below_1, below_2 = left * right_1 + 1.0, left * right_2 + 1.0
            shared = reciprocal(below_1 * below_2, GPU)
            share_1, share_2 = shared * below_2, shared * below_1
            curve_1, curve_2 = 0.5 - share_1, 0.5 - share_2
            grad_query += slope_1 * right_1 * share_1 * share_1
            grad_query += slope_2 * right_2 * share_2 * share_2
        grad_weight += slope_1 * curve_1
        grad_weight += slope_2 * curve_2
        slopes += 2
        powers += 2 * WIDE
        lesses += 2 * WIDE
    return grad_query, grad_weight


@triton.jit
def _written(FORM: tl.constexpr, EDGES, edges, chosen, BLOCK_K: tl.constexpr):
    """Whether a block of queries visits a block of keys. Among those between the first and the last, some may not."""
    if kind(FORM) == "s":
        return (tl.load(EDGES) < (chosen + 1) * BLOCK_K) & (tl.load(EDGES + edges) > chosen * BLOCK_K)
    else:
        return chosen >= 0


@triton.jit(do_not_specialize=_LENGTHS)
def of_additive_keys(
    STRIP, Q, K, WEIGHT, POWERS_Q, POWERS_K, PARTS, LARGEST_Q, LARGEST_K, LIST, COUNTS, EDGES, TABLES, TABLE_STRIDES,
    LIST_STRIDES, Q_STRIDES, K_STRIDES, weight_stride, heads, group, q_len, k_len, first_head, first_block,
    row_blocks, edges, splits, reach, scale,
    FORM: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, GPU: tl.constexpr,
):
    """Σ over some queries of ds·(1 − tanh²), the gradient of one block of keys, in some dimensions."""
    COLUMNS: tl.constexpr = WIDE // BLOCK_D
    k_blocks, q_blocks = tl.cdiv(k_len, BLOCK_K), tl.cdiv(q_len, BLOCK_Q)
    column, rest = tl.program_id(0) % COLUMNS, tl.program_id(0) // COLUMNS
    chosen, line = rest % k_blocks, rest // k_blocks
    split, inner = line % splits, line // splits
    both = first_head + inner
    batch, head = both // heads, both % heads
    shared = batch * (heads // group) + head // group
    columns, across = chosen * BLOCK_K + tl.arange(0, BLOCK_K), column * BLOCK_D + tl.arange(0, BLOCK_D)
    pointers = POWERS_K + (shared.to(tl.int64) * (k_blocks * BLOCK_K) + columns)[:, None] * WIDE + across[None, :]
    right = tl.load(pointers)
    of_keys = tl.load(LARGEST_K + shared * k_blocks + chosen)
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + chosen
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    partial, full, first, before, full_first = query_blocks(
        FORM, TABLE_STRIDES, EDGES + batch * LIST_STRIDES[3], COUNTS + entry * 2, edges, q_len, chosen * BLOCK_K,
        k_len, BLOCK_Q, BLOCK_K,
    )
    low = first_block + split * reach
    high = tl.minimum(low + reach, first_block + row_blocks)
    grad_key = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)  # without 4·e^{2k}, see `_along_keys`
    for step in tl.range(0, partial + full):
        block = block_of(FORM, LIST, step, first, before, full_first, full)
        written = _written(FORM, EDGES + batch * LIST_STRIDES[3] + block, edges, chosen, BLOCK_K)
        if (block >= low) & (block < high) & written:
            line = inner * row_blocks + block - first_block
            slopes = STRIP + line * BLOCK_Q * (k_blocks * BLOCK_K) + columns
            of_queries = tl.load(LARGEST_Q + both * q_blocks + block)
            if is_fast(of_queries, of_keys):
                powers = POWERS_Q + (both.to(tl.int64) * q_blocks + block) * BLOCK_Q * WIDE + across
                for _two in tl.range(0, BLOCK_Q, 2):
                    left_1, left_2 = tl.load(powers)[None, :], tl.load(powers + WIDE)[None, :]
                    slope_1, slope_2 = tl.load(slopes)[:, None], tl.load(slopes + k_blocks * BLOCK_K)[:, None]
                    below_1, below_2 = left_1 * right + 1.0, left_2 * right + 1.0
                    both_ways = reciprocal(below_1 * below_2, GPU)
                    share_1, share_2 = both_ways * below_2, both_ways * below_1
                    grad_key += slope_1 * left_1 * share_1 * share_1
                    grad_key += slope_2 * left_2 * share_2 * share_2
                    powers += 2 * WIDE
                    slopes += 2 * k_blocks * BLOCK_K
            else:
                queries = Q + batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1] + across
                keys = K + batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1]
                behind = columns + (of_queries < 0.0).to(tl.int32)  # the same zero
                keys += behind[:, None].to(tl.int64) * K_STRIDES[2] + across[None, :]
                inside = (columns < k_len)[:, None] & (across < D)[None, :]
                key = tl.load(keys, mask=inside, other=0.0).to(tl.float32)
                inverse = 1.0 / right
                for one in tl.range(0, BLOCK_Q):
                    at = block * BLOCK_Q + one
                    slope = tl.load(slopes + one * (k_blocks * BLOCK_K))[:, None]
                    real = across < tl.where(at < q_len, D, 0)
                    query = tl.load(queries + at.to(tl.int64) * Q_STRIDES[2], mask=real, other=0.0)
                    _, steep = tanh(query.to(tl.float32)[None, :] + key, GPU)
                    grad_key += tl.where(slope == 0.0, 0.0, slope * steep * inverse)
    weight = tl.load(WEIGHT + head * weight_stride + across, mask=across < D, other=0.0).to(tl.float32) * scale
    lines = tl.num_programs(0) // (COLUMNS * splits * k_blocks)
    into = PARTS + (split * lines + inner).to(tl.int64) * (k_blocks * BLOCK_K) * WIDE
    tl.store(into + columns[:, None] * WIDE + across[None, :], grad_key * (4.0 * right) * weight[None, :])
