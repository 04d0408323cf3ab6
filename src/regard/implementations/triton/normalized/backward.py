"""Backward kernels of sigmoid, sparsemax, entmax15 and hard, from two numbers of each row (`normalized.py`).

With dW the gradient of the weights, the gradient of the scores is

- sigmoid: w (1 − w) dW;
- sparsemax and entmax15: g (dW − Σ g dW / Σ g), where g is 1 on the support, or the root of the weight;
- hard: zero; the chosen value alone receives the gradient of the output.

Each gradient is summed by one program in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import (
    key_blocks,
    known_query_blocks,
    next_block,
    program_block,
)
from regard.implementations.triton.launch.device_functions import (
    final_scores,
    load_row_stats,
    rows_of,
    seen_in_tile,
    store_rows,
    visible,
)
from regard.implementations.triton.normalized.forward import (
    DATA,
    block_of_queries,
    power,
    tile_scores,
    unit,
    weights_of,
)


# Of a branch around selections alone the compiler makes selections in every tile. With the mask inside it stays a
# branch, and a fully visible tile takes a tenth to a quarter fewer instructions. But then products and mask are in
# registers at once, and some kernels have no room for that: they mask scores, and later what came of them.
@triton.constexpr_function
def masks_queries_once(bulk, precision, width):
    """Whether the kernel of the queries masks once: not where it holds addresses, or the parts of float32, as well."""
    return bulk and precision != "bf16x6" and width <= 128


@triton.constexpr_function
def masks_keys_once(kind, precision, width):
    """Whether the kernel of the keys does. Of threshold kinds, products with a mask between them wait (C7513)."""
    return power(kind) > 0 or (precision != "bf16x6" and width > 64)


@triton.jit
def _seen_by_rows(
    FORM: tl.constexpr, TABLES, STRIDES, batch, head, rows, start, q_len, k_len, BLOCK_K: tl.constexpr
):
    """`seen_in_tile` for a block of queries and the keys from `start` on."""
    columns = start + tl.arange(0, BLOCK_K)
    return seen_in_tile(
        FORM, TABLES, STRIDES, batch, head, rows[:, None], columns[None, :], tl.minimum(rows, q_len - 1)[:, None],
        tl.minimum(columns, k_len - 1)[None, :], k_len,
    )


@triton.jit(do_not_specialize=DATA)
def of_queries(
    Q, K, V, GRAD, LARGEST, CHOICE, DELTA, GRAD_Q, SEEN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, V_STRIDES, GRAD_STRIDES, GRAD_Q_STRIDES, SEEN_STRIDES, LIST_STRIDES, heads, group, q_len,
    k_len, padded_rows, scale, cap,
    KIND: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, HIDES: tl.constexpr,
    APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
):
    """Gradients of one block of queries. DELTA gets Σ g dW / Σ g of each row, which the kernel of the keys needs.

    `BULK`: K and V are descriptors.
    """
    block, batch, head, shared = block_of_queries(ORDER, heads, group, q_len, BLOCK_Q, ORDERED)
    rows, wide = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    at = (batch * heads + head).to(tl.int64) * padded_rows + rows
    largest = tl.load(LARGEST + at)
    choice = tl.zeros([BLOCK_Q], tl.float32)
    if power(KIND) > 0:
        choice = tl.load(CHOICE + at)
    shown = largest != float("inf")  # a row that sees nothing is not read
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    query = rows_of(Q, Q_STRIDES, batch, head, block * BLOCK_Q, shown, D, BLOCK_Q, BLOCK_D, False)
    grad = rows_of(GRAD, GRAD_STRIDES, batch, head, block * BLOCK_Q, shown, WIDTH, BLOCK_Q, BLOCK_V, False)
    nothing = tl.zeros([BLOCK_Q, 1], tl.float32)
    safe_rows = tl.minimum(rows, q_len - 1)
    partial, full, first, before, _unused = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    steps = partial + full
    ONCE: tl.constexpr = masks_queries_once(BULK, PRECISION, BLOCK_D)
    delta = tl.zeros([BLOCK_Q], tl.float32)
    if power(KIND) > 0:
        mass = tl.zeros([BLOCK_Q], tl.float32)
        for step in tl.range(0, steps):
            start, partly = next_block(FORM, LIST, step, first, before, full)
            scores, _key, real, _tanh = tile_scores(
                query, largest, nothing, start * BLOCK_K, False if ONCE else partly, K, SEEN, TABLES, TABLE_STRIDES,
                NUMBERS, K_STRIDES, batch, head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES,
                APPROXIMATE, PRECISION, D, BLOCK_D, BLOCK_K, BULK, KIND,
            )
            value = rows_of(V, V_STRIDES, batch, shared, start * BLOCK_K, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
            from_values = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
            _weights, slopes = weights_of(scores - choice[:, None], KIND, APPROXIMATE)
            if partly:
                if ONCE:
                    seen = _seen_by_rows(
                        FORM, TABLES, TABLE_STRIDES, batch, head, rows, start * BLOCK_K, q_len, k_len, BLOCK_K
                    )
                    slopes, from_values = tl.where(seen, slopes, 0.0), tl.where(seen, from_values, 0.0)
                else:
                    from_values = tl.where(scores == float("-inf"), 0.0, from_values)
            delta += tl.sum(slopes * from_values, 1)
            mass += tl.sum(slopes, 1)
        delta = delta / tl.where(mass == 0.0, 1.0, mass)
        tl.store(DELTA + at, delta)
    grad_query = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for step in tl.range(0, steps):
        start, partly = next_block(FORM, LIST, step, first, before, full)
        scores, key, real, flattened = tile_scores(
            query, largest, nothing, start * BLOCK_K, False if ONCE else partly, K, SEEN, TABLES, TABLE_STRIDES,
            NUMBERS, K_STRIDES, batch, head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE,
            PRECISION, D, BLOCK_D, BLOCK_K, BULK, KIND,
        )
        value = rows_of(V, V_STRIDES, batch, shared, start * BLOCK_K, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
        from_values = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
        placed = scores
        if power(KIND) > 0:
            placed -= choice[:, None]
        _weights, slopes = weights_of(placed, KIND, APPROXIMATE)
        if power(KIND) > 0:
            from_values -= delta[:, None]
        grad_scores = slopes * from_values
        if CAP:
            grad_scores *= 1.0 - flattened * flattened
        if partly:
            if ONCE:
                seen = _seen_by_rows(
                    FORM, TABLES, TABLE_STRIDES, batch, head, rows, start * BLOCK_K, q_len, k_len, BLOCK_K
                )
                grad_scores = tl.where(seen, grad_scores, 0.0)
            else:
                grad_scores = tl.where(scores == float("-inf"), 0.0, grad_scores)
        grad_query = tl.dot(grad_scores.to(key.dtype), key, grad_query, input_precision=PRECISION)
    store_rows(GRAD_Q, GRAD_Q_STRIDES, batch, head, rows, wide, grad_query * scale, q_len, D)


@triton.jit(do_not_specialize=DATA)
def of_keys(
    Q, K, V, GRAD, LARGEST, CHOICE, DELTA, GRAD_K, GRAD_V, SEEN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, V_STRIDES, GRAD_STRIDES, GRAD_K_STRIDES, GRAD_V_STRIDES, SEEN_STRIDES, LIST_STRIDES,
    heads, group, q_len, k_len, padded_rows, scale, cap,
    KIND: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, HIDES: tl.constexpr,
    APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
    GROUPED: tl.constexpr,
):
    """Gradients of one block of keys and values: a walk over the queries of every head that shares them.

    Tiles lie keys × queries, as in the kernel for softmax. `BULK`: Q, GRAD, LARGEST, CHOICE and DELTA, as far as they
    are read, are descriptors.
    """
    groups, blocks = heads // group, tl.cdiv(k_len, BLOCK_K)
    block, line = program_block(ORDER, blocks, 1, ORDERED)
    batch, shared = line // groups, line % groups
    start = block * BLOCK_K
    columns, wide, across = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    real = columns < k_len
    if HIDES:
        real &= tl.load(SEEN + batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1] + columns, mask=real, other=0) != 0
    key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, False)
    value = rows_of(V, V_STRIDES, batch, shared, start, real, WIDTH, BLOCK_K, BLOCK_V, False)
    grad_key = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    grad_value = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    for part in range(0, group if GROUPED else 1):
        head = shared * group + part
        entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
        lines = LIST + entry.to(tl.int64) * LIST_STRIDES[2]
        partial, full, first, before = known_query_blocks(
            FORM, TABLE_STRIDES, COUNTS, entry, q_len, start, k_len, BLOCK_Q, BLOCK_K
        )
        for step in tl.range(0, partial + full):
            top, partly = next_block(FORM, lines, step, first, before, full)
            grad_key, grad_value = _keys_of_tile(
                key, value, grad_key, grad_value, top * BLOCK_Q, partly, Q, GRAD, LARGEST, CHOICE, DELTA, TABLES,
                TABLE_STRIDES, NUMBERS, Q_STRIDES, GRAD_STRIDES, batch, head, heads, columns, q_len, k_len,
                padded_rows, scale, cap, KIND, FORM, BIAS, CAP, APPROXIMATE, PRECISION, BULK, D, WIDTH, BLOCK_D,
                BLOCK_V, BLOCK_Q,
            )
    store_rows(GRAD_K, GRAD_K_STRIDES, batch, shared, columns, wide, grad_key * scale, k_len, D)
    store_rows(GRAD_V, GRAD_V_STRIDES, batch, shared, columns, across, grad_value, k_len, WIDTH)


@triton.jit
def _keys_of_tile(
    key, value, grad_key, grad_value, top, partly, Q, GRAD, LARGEST, CHOICE, DELTA, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, GRAD_STRIDES, batch, head, heads, columns, q_len, k_len, padded_rows, scale, cap,
    KIND: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, APPROXIMATE: tl.constexpr,
    PRECISION: tl.constexpr, BULK: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr,
):
    """Add what the queries from `top` on contribute to the gradients of a block of keys and values."""
    rows, line = top + tl.arange(0, BLOCK_Q), batch * heads + head
    largest = load_row_stats(LARGEST, line, top, padded_rows, BLOCK_Q, BULK)
    choice = largest
    if KIND != "sigmoid":
        choice = load_row_stats(CHOICE, line, top, padded_rows, BLOCK_Q, BULK)
    shown = largest != float("inf")  # a row that sees nothing is not read
    grad = rows_of(GRAD, GRAD_STRIDES, batch, head, top, shown, WIDTH, BLOCK_Q, BLOCK_V, BULK)
    if KIND == "hard":
        weights = tl.where(columns.to(tl.float32)[:, None] == choice[None, :], 1.0, 0.0)
        weights += tl.where(largest == largest, 0.0, float("nan"))[None, :]
        # In every tile, not only where `partly` says so: Triton 3.6 does not compile that branch for a dense mask.
        seen = visible(
            FORM, TABLES, TABLE_STRIDES, batch, head, tl.minimum(rows, q_len - 1)[None, :],
            tl.minimum(columns, k_len - 1)[:, None],
        )
        weights = tl.where(seen & (columns < k_len)[:, None], weights, 0.0)
        grad_value = tl.dot(weights.to(grad.dtype), grad, grad_value, input_precision=PRECISION)
    else:
        query = rows_of(Q, Q_STRIDES, batch, head, top, shown, D, BLOCK_Q, BLOCK_D, BULK)
        products = tl.dot(key, tl.trans(query), input_precision=PRECISION)
        safe_rows, safe_columns = (tl.minimum(rows, q_len - 1)[None, :], tl.minimum(columns, k_len - 1)[:, None])
        scores, flattened = final_scores(
            products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head, safe_rows,
            safe_columns, unit(KIND),
        )
        placed = scores - largest[None, :]  # first: both may be much larger than their difference
        if power(KIND) > 0:
            placed -= choice[None, :]
        if masks_keys_once(KIND, PRECISION, BLOCK_D):
            from_values = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
            if power(KIND) > 0:
                from_values -= load_row_stats(DELTA, line, top, padded_rows, BLOCK_Q, BULK)[None, :]
            if CAP:
                from_values *= 1.0 - flattened * flattened
            if partly:
                seen = seen_in_tile(
                    FORM, TABLES, TABLE_STRIDES, batch, head, rows[None, :], columns[:, None], safe_rows,
                    safe_columns, k_len,
                )
                placed = tl.where(seen, placed, float("-inf"))
                # In a row that is NaN, what is hidden stays out.
                from_values = tl.where(seen, from_values, 0.0)
            weights, slopes = weights_of(placed, KIND, APPROXIMATE)
            grad_value = tl.dot(weights.to(grad.dtype), grad, grad_value, input_precision=PRECISION)
            grad_scores = slopes * from_values
        else:
            if partly:
                seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, safe_rows, safe_columns)
                placed = tl.where(seen & (columns < k_len)[:, None], placed, float("-inf"))
            weights, slopes = weights_of(placed, KIND, APPROXIMATE)
            from_values = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
            grad_value = tl.dot(weights.to(grad.dtype), grad, grad_value, input_precision=PRECISION)
            grad_scores = slopes * from_values
            if CAP:
                grad_scores *= 1.0 - flattened * flattened
            if partly:  # to keep `placed` would take registers; the slope of a visible pair is not 0
                grad_scores = tl.where(slopes == 0.0, 0.0, grad_scores)
        grad_key = tl.dot(grad_scores.to(query.dtype), query, grad_key, input_precision=PRECISION)
    return grad_key, grad_value
