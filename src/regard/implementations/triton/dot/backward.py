"""The backward kernels: gradients of keys and values by blocks of keys, of queries by blocks of queries.

Both recompute the weights of a tile from the log-sum-exp. Each gradient is summed by one program in a fixed order, so
that equal inputs give equal bits; pieces of long sums are joined in a fixed order, too (`pieces.py`). (Summing the
gradient of the queries in the first kernel as well, by atomic operations, would save two of seven matrix products, but
took longer on an H200.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import (
    clean_steps,
    key_blocks,
    known_query_blocks,
    next_block,
    piece,
    program_block,
)
from regard.implementations.triton.launch.device_functions import (
    bend,
    dropout_keeps,
    final_scores,
    load_row_stats,
    row_state,
    rows_of,
    seen_in_tile,
    slope_of,
    store_rows,
    tile,
)

_DATA = [
    "q_len", "k_len", "heads", "group", "padded_rows", "TABLE_STRIDES", "LIST_STRIDES", "SEEN_STRIDES", "BIAS_STRIDES",
    "threshold", "pieces", "slots",
]


@triton.jit(do_not_specialize=["q_len", "heads", "padded_rows", "TABLE_STRIDES"])
def compute_row_stats(
    OUT, GRAD, LSE, SHARE, ROW_STATS, TABLES, TABLE_STRIDES, OUT_STRIDES, GRAD_STRIDES, heads, q_len, padded_rows,
    SHARES: tl.constexpr, BIAS: tl.constexpr, PERIOD: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr,
):
    """Two numbers of each row for the other kernels, (2, lines, padded_rows).

    First the log-sum-exp to base 2, +inf for rows that see nothing and rows beyond the last, so that all their weights
    become 0. Then what is subtracted in the gradient of every score: Σ out · gradient − `SHARE`. `PERIOD`: the rows of
    a block, to which the part of a slope's bias is added that belongs to the row, counted from its block's first.
    """
    blocks, lines = padded_rows // BLOCK_Q, tl.num_programs(0) // (padded_rows // BLOCK_Q)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    rows, across = tl.program_id(0) % blocks * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_V)
    batch, head = line // heads, line % heads
    real, far = rows < q_len, rows[:, None].to(tl.int64)
    OUT += batch * OUT_STRIDES[0] + head * OUT_STRIDES[1]
    GRAD += batch * GRAD_STRIDES[0] + head * GRAD_STRIDES[1]
    out = tile(OUT + far * OUT_STRIDES[2] + across[None, :], real[:, None], across[None, :], WIDTH, BLOCK_V, False)
    grad = tile(GRAD + far * GRAD_STRIDES[2] + across[None, :], real[:, None], across[None, :], WIDTH, BLOCK_V, False)
    lse = tl.load(LSE + line * q_len + rows, mask=real, other=float("-inf"))
    if EXACT:
        # Summed as the products of gradients and values are: where one key takes all the weight, its value is the
        # output, and the difference of the two, which becomes the gradient of the score, is exactly 0.
        each = tl.arange(0, BLOCK_Q)
        products = tl.dot(grad, tl.trans(out), input_precision=PRECISION)
        delta = tl.sum(tl.where(each[:, None] == each[None, :], products, 0.0), 1)
    else:
        delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    if SHARES:
        delta -= tl.load(SHARE + line * q_len + rows, mask=real, other=0.0)
    power = lse * 1.4426950408889634
    if EXACT:
        power = (lse.to(tl.float64) * 1.4426950408889634).to(tl.float32)
    lse = tl.where(lse == float("-inf"), float("inf"), power)
    if PERIOD:
        slope, _ = slope_of(BIAS, TABLES, TABLE_STRIDES, head)
        lse += slope * (rows % PERIOD).to(tl.float32)
    tl.store(ROW_STATS + line * padded_rows + rows, lse)
    tl.store(ROW_STATS + (lines + line) * padded_rows + rows, delta)


@triton.jit(do_not_specialize=_DATA)
def of_keys(
    Q, K, V, GRAD, LSE, DELTA, GRAD_K, GRAD_V, PARTS, Q_ROWS, GRAD_ROWS, LSE_ROWS, DELTA_ROWS, SEED, SEEN, UNCLEAN,
    LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES, V_STRIDES, GRAD_STRIDES, GRAD_K_STRIDES,
    GRAD_V_STRIDES, SEEN_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, padded_rows, pieces, slots, scale, cap,
    threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, DROPS: tl.constexpr, HIDES: tl.constexpr,
    HIDES_ROWS: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, GROUPED: tl.constexpr,
    BY_HEAD: tl.constexpr, SLOPED: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Gradients of one block of keys and values: a walk over the queries of every head that shares them.

    Tiles lie keys × queries, so that no product needs its weights turned around. `BULK`: Q, GRAD, LSE and DELTA are
    descriptors; from the first query on that must not be read, rows are loaded from Q_ROWS and so on.
    """
    groups, blocks = heads // group, tl.cdiv(k_len, BLOCK_K)
    block, line = program_block(ORDER, blocks, pieces, ORDERED)
    batch, shared = line // groups, line % groups
    start = block * BLOCK_K
    columns, wide, across = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    real = columns < k_len
    if HIDES:
        seen_keys = SEEN + batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
        real &= tl.load(seen_keys + columns, mask=real, other=0) != 0
    key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, False)
    value = rows_of(V, V_STRIDES, batch, shared, start, real, WIDTH, BLOCK_K, BLOCK_V, False)
    grad_key = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    grad_value = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    slot = block * 0 - 1
    # A loop around the walk takes registers from it: heads that visit the same blocks are walked in one.
    for part in range(0, group if GROUPED and BY_HEAD else 1):
        entry = batch * LIST_STRIDES[0] + (shared * group + part) * LIST_STRIDES[1] + block
        lines = LIST + entry.to(tl.int64) * LIST_STRIDES[2]
        partial, full, first, before = known_query_blocks(
            FORM, TABLE_STRIDES, COUNTS, entry, q_len, start, k_len, BLOCK_Q, BLOCK_K
        )
        steps = partial + full
        begin, end, slot = piece(ORDER, pieces, steps * group if GROUPED and not BY_HEAD else steps, ORDERED)
        clean = end
        if HIDES_ROWS:
            if GROUPED and not BY_HEAD:
                every = clean_steps(FORM, UNCLEAN + batch * SEEN_STRIDES[2], first, steps * 0, steps) == steps
                clean = tl.where(every, end, begin)
            else:
                clean = clean_steps(FORM, UNCLEAN + batch * SEEN_STRIDES[2], first, begin, end)
        if BULK or not HIDES_ROWS:
            for turn in tl.range(begin, clean):
                head, step = shared * group + part, turn
                if GROUPED and not BY_HEAD:
                    head, step = shared * group + turn // steps, turn % steps
                top, partly = next_block(FORM, lines, step, first, before, full)
                grad_key, grad_value = _keys_of_tile(
                    key, value, grad_key, grad_value, start, top * BLOCK_Q, partly, Q, GRAD, LSE, DELTA, SEED, TABLES,
                    TABLE_STRIDES, NUMBERS, Q_STRIDES, GRAD_STRIDES, batch, head, heads, columns, q_len, k_len,
                    padded_rows, scale, cap, threshold, keep, FORM, BIAS, CAP, DROPS, False, APPROXIMATE, PRECISION,
                    SLOPED, BULK, D, WIDTH, BLOCK_D, BLOCK_V, BLOCK_Q, BLOCK_K,
                )
        if HIDES_ROWS:
            for turn in tl.range(clean if BULK else begin, end, num_stages=1 if BULK else None):
                head, step = shared * group + part, turn
                if GROUPED and not BY_HEAD:
                    head, step = shared * group + turn // steps, turn % steps
                top, partly = next_block(FORM, lines, step, first, before, full)
                grad_key, grad_value = _keys_of_tile(
                    key, value, grad_key, grad_value, start, top * BLOCK_Q, partly, Q_ROWS, GRAD_ROWS, LSE_ROWS,
                    DELTA_ROWS, SEED, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, GRAD_STRIDES, batch, head, heads,
                    columns, q_len, k_len, padded_rows, scale, cap, threshold, keep, FORM, BIAS, CAP, DROPS, True,
                    APPROXIMATE, PRECISION, SLOPED, False, D, WIDTH, BLOCK_D, BLOCK_V, BLOCK_Q, BLOCK_K,
                )
    if ORDERED == 2:  # noqa: SIM102  (a constant: what follows is compiled only for it)
        if slot >= 0:
            every = tl.num_programs(0) // pieces
            inner = (slot * every + line).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
            tl.store(PARTS + inner[:, None] * BLOCK_D + wide[None, :], grad_key * scale)
            PARTS += (slots * every).to(tl.int64) * (BLOCK_K * BLOCK_D)
            tl.store(PARTS + inner[:, None] * BLOCK_V + across[None, :], grad_value)
            return
    store_rows(GRAD_K, GRAD_K_STRIDES, batch, shared, columns, wide, grad_key * scale, k_len, D)
    store_rows(GRAD_V, GRAD_V_STRIDES, batch, shared, columns, across, grad_value, k_len, WIDTH)


@triton.jit
def _keys_of_tile(
    key, value, grad_key, grad_value, start, top, partly, Q, GRAD, LSE, DELTA, SEED, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, GRAD_STRIDES, batch, head, heads, columns, q_len, k_len, padded_rows, scale, cap, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, DROPS: tl.constexpr, HIDES_ROWS: tl.constexpr,
    APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, SLOPED: tl.constexpr, BULK: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Add what the queries from `top` on contribute to the gradients of a block of keys and values."""
    rows = top + tl.arange(0, BLOCK_Q)
    lse = load_row_stats(LSE, batch * heads + head, top, padded_rows, BLOCK_Q, BULK)
    delta = load_row_stats(DELTA, batch * heads + head, top, padded_rows, BLOCK_Q, BULK)
    shown = rows < q_len
    if HIDES_ROWS:
        shown &= lse != float("inf")
    query = rows_of(Q, Q_STRIDES, batch, head, top, shown, D, BLOCK_Q, BLOCK_D, BULK)
    grad = rows_of(GRAD, GRAD_STRIDES, batch, head, top, shown, WIDTH, BLOCK_Q, BLOCK_V, BULK)
    products = tl.dot(key, tl.trans(query), input_precision=PRECISION)
    from_values = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
    safe_rows, safe_columns = tl.minimum(rows, q_len - 1)[None, :], tl.minimum(columns, k_len - 1)[:, None]
    flattened, slope, shift = products, 0.0, 0
    if SLOPED:
        slope, shift = slope_of(BIAS, TABLES, TABLE_STRIDES, head)
        height = slope * (columns - (top + shift)).to(tl.float32)  # what belongs to the row is part of `lse`
        powers = products * (scale * 1.4426950408889634) - lse[None, :] + height[:, None]
        partly |= start + BLOCK_K > top + shift + 1
    else:
        scores, flattened = final_scores(
            products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
            safe_rows, safe_columns,
        )
        powers = scores - lse[None, :]
    stays = powers
    if DROPS:
        stays = dropout_keeps(row_state(tl.load(SEED), batch, head, safe_rows), columns[:, None], threshold)
        from_values = tl.where(stays, from_values * keep, 0.0)
    slopes = from_values - delta[None, :]
    if CAP:
        slopes *= 1.0 - flattened * flattened
    # One branch: of a second one, around a single selection, the compiler would make selections in every tile.
    if partly:
        seen = seen_in_tile(
            FORM, TABLES, TABLE_STRIDES, batch, head, rows[None, :], columns[:, None], safe_rows, safe_columns, k_len
        )
        if SLOPED:
            powers -= bend(slope, shift, rows[None, :], columns[:, None])
        powers = tl.where(seen, powers, float("-inf"))
        slopes = tl.where(seen, slopes, 0.0)  # in a row that is NaN, what is hidden stays out
    weights = tl.exp2(powers)
    dropped = weights
    if DROPS:
        dropped = tl.where(stays, weights * keep, 0.0)
    grad_value = tl.dot(dropped.to(grad.dtype), grad, grad_value, input_precision=PRECISION)
    grad_key = tl.dot((weights * slopes).to(query.dtype), query, grad_key, input_precision=PRECISION)
    return grad_key, grad_value


@triton.jit(do_not_specialize=_DATA)
def of_queries(
    Q, K, V, GRAD, LSE, DELTA, GRAD_Q, PARTS, K_ROWS, V_ROWS, SEED, SEEN, UNCLEAN, LIST, COUNTS, ORDER, TABLES,
    TABLE_STRIDES, NUMBERS, CENTERS, GRAD_CENTERS, GRAD_BIAS, Q_STRIDES, K_STRIDES, V_STRIDES, GRAD_STRIDES,
    GRAD_Q_STRIDES, BIAS_STRIDES, SEEN_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, padded_rows, pieces, slots,
    scale, cap, threshold, keep,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, DROPS: tl.constexpr, HIDES: tl.constexpr,
    HIDES_ROWS: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, CENTERED: tl.constexpr,
    DENSE: tl.constexpr, SLOPED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
):
    """Gradients of one block of queries; on the way of a Gaussian's centres (`CENTERED`) and a dense bias (`DENSE`).

    `BULK` as in the forward kernel.
    """
    blocks = tl.cdiv(q_len, BLOCK_Q)
    block, line = program_block(ORDER, blocks, pieces, ORDERED)
    if not ORDERED:
        block = blocks - 1 - block
    batch, head = line // heads, line % heads
    shared = head // group
    rows, wide = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    far, offset = rows[:, None].to(tl.int64), (batch * heads + head).to(tl.int64) * q_len
    lse = load_row_stats(LSE, batch * heads + head, block * BLOCK_Q, padded_rows, BLOCK_Q, False)
    delta = load_row_stats(DELTA, batch * heads + head, block * BLOCK_Q, padded_rows, BLOCK_Q, False)
    shown = rows < q_len
    if HIDES_ROWS:
        shown &= lse != float("inf")
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    GRAD_BIAS += batch.to(tl.int64) * BIAS_STRIDES[0] + head.to(tl.int64) * BIAS_STRIDES[1] + far * BIAS_STRIDES[2]
    query = rows_of(Q, Q_STRIDES, batch, head, block * BLOCK_Q, shown, D, BLOCK_Q, BLOCK_D, False)
    grad = rows_of(GRAD, GRAD_STRIDES, batch, head, block * BLOCK_Q, shown, WIDTH, BLOCK_Q, BLOCK_V, False)
    safe_rows = tl.minimum(rows, q_len - 1)
    state = safe_rows[:, None]
    if DROPS:
        state = row_state(tl.load(SEED), batch, head, safe_rows)[:, None]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    partial, full, first, before, _ = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    begin, end, slot = piece(ORDER, pieces, partial + full, ORDERED)
    grad_query = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    pull = tl.zeros([BLOCK_Q], tl.float32)
    center = pull
    if CENTERED:
        center = tl.load(CENTERS + offset + safe_rows)
    clean = end
    if HIDES:
        UNCLEAN += batch * SEEN_STRIDES[2] + shared * SEEN_STRIDES[3]
        clean = clean_steps(FORM, UNCLEAN, first, begin, end)
    if BULK or not HIDES:
        for step in tl.range(begin, clean):
            start, partly = next_block(FORM, LIST, step, first, before, full)
            grad_query, pull = _queries_of_tile(
                query, grad, lse, delta, grad_query, pull, center, state, block * BLOCK_Q, start * BLOCK_K, partly, K,
                V, SEEN, GRAD_BIAS, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, V_STRIDES, BIAS_STRIDES, batch, head,
                shared, rows, q_len, k_len, scale, cap, threshold, keep, FORM, BIAS, CAP, DROPS, False, APPROXIMATE,
                PRECISION, CENTERED, DENSE, SLOPED, D, WIDTH, BLOCK_D, BLOCK_V, BLOCK_K, BULK,
            )
    if HIDES:
        for step in tl.range(clean if BULK else begin, end, num_stages=1 if BULK else None):
            start, partly = next_block(FORM, LIST, step, first, before, full)
            grad_query, pull = _queries_of_tile(
                query, grad, lse, delta, grad_query, pull, center, state, block * BLOCK_Q, start * BLOCK_K, partly,
                K_ROWS, V_ROWS, SEEN, GRAD_BIAS, TABLES, TABLE_STRIDES, NUMBERS, K_STRIDES, V_STRIDES, BIAS_STRIDES,
                batch, head, shared, rows, q_len, k_len, scale, cap, threshold, keep, FORM, BIAS, CAP, DROPS, True,
                APPROXIMATE, PRECISION, CENTERED, DENSE, SLOPED, D, WIDTH, BLOCK_D, BLOCK_V, BLOCK_K, False,
            )
    if ORDERED == 2:  # noqa: SIM102  (a constant: what follows is compiled only for it)
        if slot >= 0:
            place = slot * (tl.num_programs(0) // pieces) + line
            inner = place.to(tl.int64) * BLOCK_Q + tl.arange(0, BLOCK_Q)
            tl.store(PARTS + inner[:, None] * BLOCK_D + wide[None, :], grad_query * scale)
            return
    store_rows(GRAD_Q, GRAD_Q_STRIDES, batch, head, rows, wide, grad_query * scale, q_len, D)
    if CENTERED:
        tl.store(GRAD_CENTERS + offset + rows, pull, mask=rows < q_len)


@triton.jit
def _queries_of_tile(
    query, grad, lse, delta, grad_query, pull, center, state, top, start, partly, K, V, SEEN, GRAD_BIAS, TABLES,
    TABLE_STRIDES, NUMBERS, K_STRIDES, V_STRIDES, BIAS_STRIDES, batch, head, shared, rows, q_len, k_len, scale, cap,
    threshold, keep, FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, DROPS: tl.constexpr,
    HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, CENTERED: tl.constexpr,
    DENSE: tl.constexpr, SLOPED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BULK: tl.constexpr,
):
    """Add what the keys from `start` on contribute to the gradients of a block of queries."""
    columns = start + tl.arange(0, BLOCK_K)
    real = columns < k_len
    if HIDES:
        real &= tl.load(SEEN + columns, mask=real, other=0) != 0
    key = rows_of(K, K_STRIDES, batch, shared, start, real, D, BLOCK_K, BLOCK_D, BULK)
    value = rows_of(V, V_STRIDES, batch, shared, start, real, WIDTH, BLOCK_K, BLOCK_V, BULK)
    products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    safe_rows, safe_columns = tl.minimum(rows, q_len - 1)[:, None], tl.minimum(columns, k_len - 1)[None, :]
    flattened = products
    if SLOPED:
        slope, shift = slope_of(BIAS, TABLES, TABLE_STRIDES, head)
        height = slope * (tl.arange(0, BLOCK_K) + (start - (top + shift))).to(tl.float32)
        powers = tl.fma(products, scale * 1.4426950408889634, height[None, :]) - lse[:, None]  # as forward
    else:
        scores, flattened = final_scores(
            products, BIAS, CAP, APPROXIMATE, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head, safe_rows,
            safe_columns,
        )
        weights = tl.exp2(scores - lse[:, None])
    from_values = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
    if DROPS:
        from_values = tl.where(dropout_keeps(state, columns[None, :], threshold), from_values * keep, 0.0)
    grad_scores = from_values - delta[:, None]
    if SLOPED:  # one branch, see `_keys_of_tile`; elsewhere exponents before the product save registers
        if partly | (start + BLOCK_K > top + shift + 1):
            seen = seen_in_tile(
                FORM, TABLES, TABLE_STRIDES, batch, head, rows[:, None], columns[None, :], safe_rows, safe_columns,
                k_len,
            )
            powers = tl.where(seen, powers - bend(slope, shift, rows[:, None], columns[None, :]), float("-inf"))
            grad_scores = tl.where(seen, grad_scores, 0.0)
        grad_scores *= tl.exp2(powers)
    else:
        grad_scores *= weights
        if partly:
            seen = seen_in_tile(
                FORM, TABLES, TABLE_STRIDES, batch, head, rows[:, None], columns[None, :], safe_rows, safe_columns,
                k_len,
            )
            grad_scores = tl.where(seen, grad_scores, 0.0)
    if CENTERED:
        pull += tl.sum(grad_scores * (columns.to(tl.float32)[None, :] - center[:, None]), 1)
    if DENSE:
        inner = (rows < q_len)[:, None] & (columns < k_len)[None, :]
        tl.atomic_add(GRAD_BIAS + columns[None, :] * BIAS_STRIDES[3], grad_scores, mask=inner, sem="relaxed")
    if CAP:
        grad_scores *= 1.0 - flattened * flattened
    grad_query = tl.dot(grad_scores.to(key.dtype), key, grad_query, input_precision=PRECISION)
    return grad_query, pull
