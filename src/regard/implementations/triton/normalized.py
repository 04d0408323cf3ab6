"""Forward kernel of the normalisers that are not softmax: sigmoid, sparsemax, entmax15 and hard.

A program goes over the keys of a block of queries several times and keeps a few numbers for each row, so that memory
stays linear:

- sigmoid: once, since each pair has its own weight;
- hard: once for the largest score and its key, once for the output;
- sparsemax, entmax15: once for the largest score, then for the threshold τ, then for the output. Weights are
  (s − τ)₊ᵖ with s = (score − largest)/p. The p-norm of (s − τ)₊ is convex and falls with τ, and it is at least 1 at
  τ = −1; so Newton's steps from there approach the τ with norm 1 from one side. They end as soon as no row moves.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.block_schedule import key_blocks, next_block, program_block
from regard.implementations.triton.device_functions import (
    final_scores,
    nonfinite_rows,
    rows_of,
    visible,
)

DATA = [
    "q_len", "k_len", "heads", "group", "TABLE_STRIDES", "LIST_STRIDES", "SEEN_STRIDES",
]  # fmt: skip
MOST_STEPS = 64  # of Newton; scores of a few thousand keys take about five


@triton.constexpr_function
def power(kind):
    """The p of a threshold normaliser; 0 for the others."""
    return {"sparsemax": 1, "entmax15": 2}.get(kind, 0)


@triton.jit
def tile_scores(
    query, nonfinite, start, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, batch, head, shared,
    safe_rows, k_len, scale, cap, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, HIDES: tl.constexpr,
    APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
    BULK: tl.constexpr,
):  # fmt: skip
    """Scores of the keys from `start` on, −inf where hidden; these keys, which of them are read, and the tanh."""
    columns = start + tl.arange(0, BLOCK_K)
    real = columns < k_len
    if HIDES:
        real &= tl.load(SEEN + columns, mask=real, other=0) != 0
    key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, BULK)
    products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    safe_columns = tl.minimum(columns, k_len - 1)
    scores, flattened = final_scores(
        products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
        safe_rows[:, None], safe_columns[None, :],
    )  # fmt: skip
    scores = scores * 0.6931471805599453 + nonfinite
    if partly:
        seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows[:, None], safe_columns[None, :])
        scores = tl.where(seen & (columns < k_len)[None, :], scores, float("-inf"))
    return scores, key, real, flattened


@triton.jit
def above_threshold(scores, largest, threshold, POWER: tl.constexpr):
    """(s − τ)₊ of scores whose `largest` is finite."""
    return tl.maximum((scores - largest) * (1.0 / POWER) - threshold, 0.0)


@triton.jit
def sigmoid(scores):
    """1 / (1 + exp(−score)), 0 for −inf."""
    return 1.0 / (1.0 + tl.exp(-scores))


@triton.jit(do_not_specialize=DATA)
def forward(
    Q, K, V, OUT, LARGEST, CHOICE, SEEN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES,
    V_STRIDES, OUT_STRIDES, SEEN_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, scale, cap,
    KIND: tl.constexpr, MOST: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr,
    HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDERED: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """One program for each block of queries, head and batch entry. `BULK`: K and V are descriptors.

    For the backward kernels two numbers of each row are kept, (b,h,q): LARGEST is −inf for a row that sees nothing and
    NaN for one that is NaN, else its largest score (under sigmoid 0); CHOICE is τ, or the index of the chosen key.
    """
    POWER: tl.constexpr = power(KIND)
    blocks = tl.cdiv(q_len, BLOCK_Q)
    block, line = program_block(ORDER, blocks, 1, ORDERED)
    if not ORDERED:
        block = blocks - 1 - block
    batch, head = line // heads, line % heads
    shared = head // group
    start_q = block * BLOCK_Q
    rows, across = start_q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_V)
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    query = rows_of(Q, Q_STRIDES, batch, head, start_q, rows < q_len, D, BLOCK_Q, BLOCK_D, False)
    nonfinite = nonfinite_rows(query)
    if CAP:  # tanh of infinity is finite
        nonfinite = tl.zeros([BLOCK_Q, 1], tl.float32)
    safe_rows = tl.minimum(rows, q_len - 1)
    partial, full, first, before, _unused = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    steps = partial + full

    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    chosen = tl.full([BLOCK_Q], 0x7FFFFFFF, tl.int32)
    has_nan = tl.zeros([BLOCK_Q], tl.int32)
    if KIND != "sigmoid":
        for step in tl.range(0, steps):
            start, partly = next_block(FORM, LIST, step, first, before, full)
            scores, _key, _real, _tanh = tile_scores(
                query, nonfinite, start * BLOCK_K, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, batch,
                head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE, PRECISION, D, BLOCK_D,
                BLOCK_K, BULK,
            )  # fmt: skip
            # A maximum need not keep a NaN.
            has_nan = tl.maximum(has_nan, tl.max((scores != scores).to(tl.int32), 1))
            best = tl.max(scores, 1)
            if KIND == "hard":  # blocks do not come in order: of equal scores the lowest key is searched
                columns = start * BLOCK_K + tl.arange(0, BLOCK_K)
                place = tl.min(tl.where(scores == best[:, None], columns[None, :], 0x7FFFFFFF), 1)
                better = (best > largest) | ((best == largest) & (place < chosen))
                chosen = tl.where(better, place, chosen)
            largest = tl.maximum(largest, best)
    empty = largest == float("-inf")
    if POWER > 0:
        has_nan = tl.where(largest == float("inf"), 1, has_nan)
    steady = tl.where(empty | (has_nan == 1), 0.0, largest)

    threshold = tl.full([BLOCK_Q], -1.0, tl.float32)
    if POWER > 0:
        moving, turn = steps * 0 + 1, steps * 0
        while (moving > 0) & (turn < MOST):
            norm = tl.zeros([BLOCK_Q], tl.float32)
            slope = tl.zeros([BLOCK_Q], tl.float32)
            for step in tl.range(0, steps):
                start, partly = next_block(FORM, LIST, step, first, before, full)
                scores, _key, _real, _tanh = tile_scores(
                    query, nonfinite, start * BLOCK_K, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES,
                    batch, head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE, PRECISION,
                    D, BLOCK_D, BLOCK_K, BULK,
                )  # fmt: skip
                above = above_threshold(scores, steady[:, None], threshold[:, None], POWER)
                if POWER == 2:
                    norm += tl.sum(above * above, 1)
                    slope += tl.sum(above, 1)
                else:
                    norm += tl.sum(above, 1)
                    slope += tl.sum((above > 0.0).to(tl.float32), 1)
            if POWER == 2:
                norm = tl.sqrt(norm)
                slope = slope / tl.where(norm > 0.0, norm, 1.0)
            change = (norm - 1.0) / tl.where(slope > 0.0, slope, 1.0)
            change = tl.where((slope > 0.0) & (has_nan == 0), change, 0.0)
            threshold += change
            moving = tl.max((tl.abs(change) > 1e-7).to(tl.int32), 0)
            turn += 1

    output = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    sees = tl.zeros([BLOCK_Q], tl.int32)
    for step in tl.range(0, steps):
        start, partly = next_block(FORM, LIST, step, first, before, full)
        scores, _key, real, _tanh = tile_scores(
            query, nonfinite, start * BLOCK_K, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, batch, head,
            shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE, PRECISION, D, BLOCK_D, BLOCK_K,
            BULK,
        )  # fmt: skip
        if KIND == "sigmoid":
            weights = sigmoid(scores)
            sees = tl.maximum(sees, tl.max((scores != float("-inf")).to(tl.int32), 1))
        elif KIND == "hard":
            columns = start * BLOCK_K + tl.arange(0, BLOCK_K)
            weights = tl.where((columns[None, :] == chosen[:, None]) & (scores != float("-inf")), 1.0, 0.0)
        else:
            weights = above_threshold(scores, steady[:, None], threshold[:, None], POWER)
            if POWER == 2:
                weights *= weights
        value = rows_of(V, V_STRIDES, batch, shared, start * BLOCK_K, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
        output = tl.dot(weights.to(value.dtype), value, output, input_precision=PRECISION)
    output = tl.where((has_nan == 1)[:, None], float("nan"), output)
    OUT += batch.to(tl.int64) * OUT_STRIDES[0] + head.to(tl.int64) * OUT_STRIDES[1]
    tl.store(
        OUT + rows[:, None].to(tl.int64) * OUT_STRIDES[2] + across[None, :], output.to(OUT.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (across[None, :] < WIDTH),
    )  # fmt: skip
    if KIND == "sigmoid":
        largest = tl.where(sees == 1, tl.sum(nonfinite, 1), float("-inf"))
    choice = threshold
    if KIND == "hard":
        choice = chosen.to(tl.float32)
    at = (batch * heads + head).to(tl.int64) * q_len + rows
    tl.store(LARGEST + at, tl.where(has_nan == 1, float("nan"), largest), mask=rows < q_len)
    tl.store(CHOICE + at, choice, mask=rows < q_len)
