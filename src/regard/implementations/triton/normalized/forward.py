"""Forward kernel of the normalisers that are not softmax: sigmoid, sparsemax, entmax15 and hard.

The weight of a pair follows from its score and from two numbers of its row: sigmoid needs none, and for the others
another kernel finds them first (`normalized_rows.py`). So the output takes one walk over the keys, as that of softmax,
without a maximum to follow and without a sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import key_blocks, next_block, program_block, row_ends
from regard.implementations.triton.launch.device_functions import (
    final_scores,
    nonfinite_rows,
    rows_of,
    store_rows,
    visible,
)

DATA = [
    "q_len", "k_len", "heads", "group", "padded_rows", "TABLE_STRIDES", "LIST_STRIDES", "SEEN_STRIDES",
]


@triton.constexpr_function
def power(kind):
    """The p of a threshold normaliser; 0 for the others."""
    return {"sparsemax": 1, "entmax15": 2}.get(kind, 0)


@triton.constexpr_function
def unit(kind):
    """What scores are multiplied with: s = score/p for a threshold, log₂e for sigmoid, which takes them to base 2."""
    return {"sparsemax": 1.0, "entmax15": 0.5, "hard": 1.0, "sigmoid": 1.4426950408889634}[kind]


@triton.constexpr_function
def is_known_who_sees(form, bias):
    """Whether the ends of a row say that it sees a key: its keys follow each other, and no bias hides one."""
    return form[0] in ".bs" and bias[0] in ".l"


@triton.jit
def block_of_queries(ORDER, heads, group, q_len, BLOCK_Q: tl.constexpr, ORDERED: tl.constexpr):
    """The block of queries that this program computes, its batch entry and head, and the head of its keys."""
    blocks = tl.cdiv(q_len, BLOCK_Q)
    block, line = program_block(ORDER, blocks, 1, ORDERED)
    if not ORDERED:
        block = blocks - 1 - block  # under a causal mask the last has most to do and starts first
    return block, line // heads, line % heads, line % heads // group


@triton.jit
def to_be_nan(query, CAP: tl.constexpr):
    """What to add to the scores of each row, and whether that is NaN anywhere: then no block counts as fully visible.

    The tanh of infinity is finite, so under a cap it is not added.
    """
    nonfinite = nonfinite_rows(query)
    spoilt = False
    if not CAP:
        spoilt = tl.max(tl.max((nonfinite != nonfinite).to(tl.int32), 1), 0) > 0
    return nonfinite, spoilt


@triton.jit
def keys_from(start, SEEN, k_len, HIDES: tl.constexpr, BLOCK_K: tl.constexpr):
    """The keys from `start` on, and which of them are read."""
    columns = start + tl.arange(0, BLOCK_K)
    real = columns < k_len
    if HIDES:
        real &= tl.load(SEEN + columns, mask=real, other=0) != 0
    return columns, real


@triton.jit
def tile_scores(
    query, base, nonfinite, start, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, batch, head,
    shared, safe_rows, k_len, scale, cap, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr,
    HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr, BULK: tl.constexpr, KIND: tl.constexpr,
):
    """Scores above `base` in the unit of `KIND`, −inf where hidden, of the keys from `start` on.

    Then these keys, which of them are read, and the tanh.
    """
    columns, real = keys_from(start, SEEN, k_len, HIDES, BLOCK_K)
    key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, BULK)
    products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    safe_columns = tl.minimum(columns, k_len - 1)
    scores, flattened = final_scores(
        products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
        safe_rows[:, None], safe_columns[None, :], unit(KIND),
    )
    scores -= base[:, None]  # with the product one instruction
    if partly:
        if not CAP:
            scores += nonfinite
        seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows[:, None], safe_columns[None, :])
        scores = tl.where(seen & (columns < k_len)[None, :], scores, float("-inf"))
    return scores, key, real, flattened


@triton.jit
def weights_of(placed, KIND: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Weights for all kinds but hard, and what their gradients are multiplied with: w (1 − w) or g.

    `placed` is a score to base 2, or how far one lies above τ: −inf where it is hidden, NaN in a row that is. g is 1 on
    the support of sparsemax, and the root of the weight for entmax15.
    """
    if KIND == "sigmoid":
        weights, rest = sigmoid(placed, APPROXIMATE)
        return weights, weights * rest
    else:
        above = tl.maximum(placed, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if power(KIND) == 2:
            return above * above, above
        else:
            return above, tl.where(above > 0.0, 1.0, above)  # a NaN stays


@triton.jit
def sigmoid(scores, APPROXIMATE: tl.constexpr):
    """x / (1 + x) and 1 / (1 + x) for x = 2^score, each to its own size; 0 and 1 for −inf.

    `APPROXIMATE`: to 2⁻¹⁷, for inputs of half precision, without a division: that and 2^score would wait for the same
    slow unit. A first guess of 1/y, to 5 %, is a difference of bits; with t = 1 − y·guess, 1/y is guess/(1 − t), which
    is guess·(1 + t)(1 + t²) to t⁴. (The GPU's tanh would be quicker still, but is exact to 2⁻¹² of 1: small weights,
    which may be many, would be lost.)
    """
    # Beyond 2⁸⁰ nothing changes but for an overflow.
    x = tl.exp2(tl.minimum(scores, 80.0, propagate_nan=tl.PropagateNan.ALL))
    if APPROXIMATE:
        y = 1.0 + x
        guess = (0x7EF31000 - y.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
        t = 1.0 - y * guess
        guess += guess * t
        rest = guess + guess * (t * t)
    else:
        rest = 1.0 / (1.0 + x)
    return x * rest, rest


@triton.jit(do_not_specialize=DATA)
def forward(
    Q, K, V, OUT, LARGEST, CHOICE, SEEN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES,
    V_STRIDES, OUT_STRIDES, SEEN_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, padded_rows, scale, cap,
    KIND: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr,
    HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ORDERED: tl.constexpr, BULK: tl.constexpr,
):
    """One program for each block of queries, head and batch entry. `BULK`: K and V are descriptors (hard: V alone).

    LARGEST and CHOICE as `normalized_rows.find_rows` leaves them; under sigmoid LARGEST is written here, and is 0
    where a row sees something.
    """
    block, batch, head, shared = block_of_queries(ORDER, heads, group, q_len, BLOCK_Q, ORDERED)
    start_q = block * BLOCK_Q
    rows, across = start_q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_V)
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    at = (batch * heads + head).to(tl.int64) * padded_rows + rows
    query = rows_of(Q, Q_STRIDES, batch, head, start_q, rows < q_len, D, BLOCK_Q, BLOCK_D, False)
    nonfinite, spoilt = to_be_nan(query, CAP)
    safe_rows = tl.minimum(rows, q_len - 1)
    largest, choice = tl.zeros([BLOCK_Q], tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    if KIND != "sigmoid":
        largest, choice = tl.load(LARGEST + at), tl.load(CHOICE + at)
    partial, full, first, before, _unused = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    output = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    KNOWN: tl.constexpr = is_known_who_sees(FORM, BIAS)
    sees = tl.zeros([BLOCK_Q], tl.int32)
    if KIND == "sigmoid" and KNOWN:
        low, high = row_ends(FORM, TABLES, TABLE_STRIDES, batch, safe_rows, k_len)
        sees = (low < high).to(tl.int32)
    for step in tl.range(0, partial + full):
        start, partly = next_block(FORM, LIST, step, first, before, full)
        if KIND == "hard":
            columns, real = keys_from(start * BLOCK_K, SEEN, k_len, HIDES, BLOCK_K)
            weights = tl.where(columns[None, :] == choice.to(tl.int32)[:, None], 1.0, 0.0)
        else:
            partly |= spoilt
            scores, _key, real, _tanh = tile_scores(
                query, largest, nonfinite, start * BLOCK_K, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS,
                K_STRIDES, batch, head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE,
                PRECISION, D, BLOCK_D, BLOCK_K, BULK, KIND,
            )
            if power(KIND) > 0:
                scores -= choice[:, None]
            weights, _slopes = weights_of(scores, KIND, APPROXIMATE)
            # Behind the weights: in `tile_scores`, ptxas serialises the matrix units for it (C7515).
            if KIND == "sigmoid" and not KNOWN and partly:
                sees = tl.maximum(sees, tl.max((scores != float("-inf")).to(tl.int32), 1))
        value = rows_of(V, V_STRIDES, batch, shared, start * BLOCK_K, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
        output = tl.dot(weights.to(value.dtype), value, output, input_precision=PRECISION)
    if KIND != "sigmoid":
        output = tl.where((largest != largest)[:, None], float("nan"), output)
    store_rows(OUT, OUT_STRIDES, batch, head, rows, across, output, q_len, WIDTH)
    if KIND == "sigmoid":
        if not CAP:
            largest = tl.sum(nonfinite, 1)
        shown = (rows < q_len) & ((sees == 1) | (full > 0))
        tl.store(LARGEST + at, tl.where(shown, largest, float("inf")))
