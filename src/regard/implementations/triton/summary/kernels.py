"""The kernels of `summarize`: statistics of all weights, in two passes over the scores.

The first walk goes along the rows: log-sum-exp, entropy, and a bar that at least `top` keys of the row reach. (The keys
fall into lanes; the top-th largest of the lanes' maxima is reached by `top` keys, and by few others.) The second goes
along the columns: it adds up what each key receives, without any two programs writing to one place, and flags the rows
to which a key of its block belongs that reaches their bar. `summary_notes.py` looks at flagged rows again and notes
those keys; `summary_order.py` puts them in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import block_of_step, key_blocks, query_blocks
from regard.implementations.triton.launch.device_functions import final_scores, kind, rows_of, visible

LENGTHS = ["q_len", "k_len", "heads", "group", "top", "edges", "first_step", "TABLE_STRIDES", "LIST_STRIDES"]


@triton.jit
def scored(
    query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, shared, rows, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, FULL: tl.constexpr, BULK: tl.constexpr,
):
    """Scores of a block of queries and the keys from `start` on; −inf where hidden. See `worth` for their unit."""
    columns = start + tl.arange(0, BLOCK_K)
    key = rows_of(K, K_STRIDES, batch, shared, start, columns < k_len, D, BLOCK_K, BLOCK_D, BULK)
    return shown(
        tl.dot(query, tl.trans(key), input_precision=PRECISION), columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head,
        rows, k_len, scale, cap, FORM, BIAS, CAP, FULL,
    )


@triton.jit
def shown(
    products, columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head, rows, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, FULL: tl.constexpr,
):
    """The same from products that are known."""
    safe = columns if FULL else tl.minimum(columns, k_len - 1)
    scores = products
    if CAP or kind(BIAS) != ".":
        scores, _ = final_scores(
            products, BIAS, CAP, False, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
            rows[:, None], safe[None, :],
        )
    if not FULL:
        seen = visible(FORM, TABLES, TABLE_STRIDES, batch, head, rows[:, None], safe[None, :])
        scores = tl.where(seen & (columns < k_len)[None, :], scores, float("-inf"))
    return scores


@triton.jit
def worth(scale, BIAS: tl.constexpr, CAP: tl.constexpr):
    """The factor from scores to base-2 exponents. Plain products stay unscaled, which saves a multiplication each."""
    if CAP or kind(BIAS) != ".":
        return 1.0
    else:
        return scale * 1.4426950408889634


@triton.jit(do_not_specialize=LENGTHS)
def along_rows(
    Q, K, LSE, ENTROPY, PEAK, SHARE, BAR, COUNT, SINK, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, top, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LANES: tl.constexpr,
    BULK: tl.constexpr,
):
    """For each row: log-sum-exp and entropy; its largest score (in powers of two), what 1 is worth there as a weight,
    and the bar, in the same unit, that at least `top` keys reach. `BULK`: K is a descriptor for the copy engine."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    start_q, shared = block * BLOCK_Q, head // group
    rows = start_q + tl.arange(0, BLOCK_Q)
    safe_rows = tl.minimum(rows, q_len - 1)
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += line.to(tl.int64) * LIST_STRIDES[2]
    COUNTS += line * 2
    query = rows_of(Q, Q_STRIDES, batch, head, start_q, rows < q_len, D, BLOCK_Q, BLOCK_D, False)
    partial, full, first, before, full_first = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS, batch, safe_rows, k_len, BLOCK_K
    )
    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    spread = tl.zeros([BLOCK_Q], tl.float32)  # Σ e·log₂ e with e = 2^(score − peak)
    lanes = tl.full([BLOCK_Q, LANES], float("-inf"), tl.float32)
    unit = worth(scale, BIAS, CAP)
    for step in tl.range(0, full):
        start = block_of_step(FORM, LIST, step, first, before, full_first, True, full) * BLOCK_K
        scores = scored(
            query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, shared, safe_rows, k_len, scale,
            cap, FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K, True, BULK,
        )
        peak, total, spread, lanes = _gather(peak, total, spread, lanes, scores, unit, BLOCK_Q, BLOCK_K, LANES)
    for step in tl.range(0, partial):
        start = block_of_step(FORM, LIST, step, first, before, full_first, False, full) * BLOCK_K
        scores = scored(
            query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, shared, safe_rows, k_len, scale,
            cap, FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K, False, BULK,
        )
        peak, total, spread, lanes = _gather(peak, total, spread, lanes, scores, unit, BLOCK_Q, BLOCK_K, LANES)

    empty = total == 0.0  # a NaN is not
    some = tl.where(empty, 1.0, total)
    lse = peak + tl.log2(some)
    # Both terms are positive, so nothing cancels, however large the scores are.
    entropy = tl.maximum(tl.log2(some) - spread / some, 0.0, propagate_nan=tl.PropagateNan.ALL)
    entropy = tl.where(empty, 0.0, entropy)
    LN2: tl.constexpr = 0.6931471805599453
    at = (batch * heads + head).to(tl.int64) * q_len + rows
    inside = rows < q_len
    tl.store(LSE + at, lse * LN2, mask=inside)
    tl.store(ENTROPY + at, entropy * LN2, mask=inside)
    bar, lane = peak, tl.arange(0, LANES)
    for _ in range(0, top):
        bar, chosen = tl.max(lanes, 1, return_indices=True)
        lanes = tl.where(lane[None, :] == chosen[:, None], float("-inf"), lanes)
        bar *= unit
    # The other pass may round a score differently in its last bits.
    bar -= peak + (tl.abs(bar) + tl.abs(peak)) * 5e-7
    fit = (total == total) & (empty == 0)
    if SINK is not None:
        sink = tl.load(SINK + head).to(tl.float32) * 1.4426950408889634
        some += tl.exp2(sink - peak)
    # No key reaches the bar of a row that sees nothing or is NaN.
    tl.store(PEAK + at, tl.where(empty, float("inf"), peak), mask=inside)
    tl.store(SHARE + at, tl.where(empty, 0.0, 1.0 / some), mask=inside)
    tl.store(BAR + at, tl.where(fit, tl.exp2(tl.maximum(bar, -1000.0)), float("inf")), mask=inside)
    tl.store(COUNT + at, tl.zeros([BLOCK_Q], tl.int32), mask=inside)


@triton.jit
def _gather(
    peak, total, spread, lanes, scores, unit, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LANES: tl.constexpr
):
    """Take one block of scores into the running numbers of its rows."""
    lanes = tl.maximum(lanes, tl.max(tl.reshape(scores, [BLOCK_Q, BLOCK_K // LANES, LANES]), 1))
    higher = tl.max(lanes, 1) * unit
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    fall = tl.maximum(peak - shift, -1000.0, propagate_nan=tl.PropagateNan.ALL)
    fade = tl.exp2(fall)
    # 2 to the power of −1000 is 0, and 0 · −1000 is, unlike 0 · −inf.
    power = tl.maximum(scores * unit - shift[:, None], -1000.0, propagate_nan=tl.PropagateNan.ALL)
    weights = tl.exp2(power)
    spread = fade * (spread + fall * total) + tl.sum(weights * power, 1)
    total = fade * total + tl.sum(weights, 1)
    return higher, total, spread, lanes


@triton.jit(do_not_specialize=LENGTHS)
def along_columns(
    K, Q, PEAK, SHARE, BAR, RECEIVED, FLAGS, EDGES, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, edges, first_step, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    STRETCH: tl.constexpr, BULK: tl.constexpr,
):
    """For each key the sum of its weights; and flags for the rows that one of the block's keys has to be noted for.

    A launch takes the `STRETCH` steps from `first_step` on, so that flags take memory linear in the length. `BULK`: Q
    is a descriptor for the copy engine.
    """
    block = tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    start = block * BLOCK_K
    columns, inside = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_Q)
    HIDES: tl.constexpr = kind(BIAS) != "."  # a bias of −inf hides, too
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += line.to(tl.int64) * LIST_STRIDES[2]
    rows_before = (batch * heads + head).to(tl.int64) * q_len
    PEAK += rows_before
    SHARE += rows_before
    BAR += rows_before
    FLAGS += (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + block) * (STRETCH * BLOCK_Q)
    key = rows_of(K, K_STRIDES, batch, head // group, start, columns < k_len, D, BLOCK_K, BLOCK_D, False)
    partial, full, first, before, full_first = query_blocks(
        FORM, TABLE_STRIDES, EDGES + batch * LIST_STRIDES[3], COUNTS + line * 2, edges, q_len, start, k_len, BLOCK_Q,
        BLOCK_K,
    )
    last_step = tl.minimum(first_step + STRETCH, partial + full)
    # Rows r and r + 8 of a product lie in one thread, so that adding them needs no exchange and saves registers. With a
    # bias the layout may differ, and Triton 3.6 then counts some rows twice, so such products are not folded.
    FOLD: tl.constexpr = 1 if HIDES or CAP else 2
    received = tl.zeros([BLOCK_Q // FOLD, BLOCK_K], tl.float32)
    for FULL in tl.static_range(1, -1, -1):  # full blocks come first
        skipped = full * 0 if FULL else full
        begin_step = tl.maximum(first_step, skipped)
        end_step = tl.minimum(last_step, full) if FULL else last_step
        for step in tl.range(begin_step, end_step):
            begin = block_of_step(FORM, LIST, step - skipped, first, before, full_first, FULL, full) * BLOCK_Q
            rows = begin + inside
            query = rows_of(Q, Q_STRIDES, batch, head, begin, rows < q_len, D, BLOCK_Q, BLOCK_D, BULK)
            peak = tl.load(PEAK + rows, mask=rows < q_len, other=float("inf"))
            sizes = relative_sizes(
                tl.dot(query, tl.trans(key), input_precision=PRECISION), peak, rows, columns, TABLES, TABLE_STRIDES,
                NUMBERS, batch, head, q_len, k_len, scale, cap, FORM, BIAS, CAP, FULL,
            )
            bar = tl.load(BAR + rows, mask=rows < q_len, other=float("inf"))
            tl.store(FLAGS + (step - first_step) * BLOCK_Q + inside, (tl.max(sizes, 1) >= bar).to(tl.int8))
            share = tl.load(SHARE + rows, mask=rows < q_len, other=0.0)
            weights = sizes * share[:, None]
            if HIDES or not FULL:  # a key hidden from a row of NaN receives nothing
                weights = tl.where(sizes < 0.0, 0.0, weights)
            if FOLD == 2:
                pairs = tl.sum(tl.reshape(weights, [BLOCK_Q // 16, 2, 8, BLOCK_K]), 1)
                received += tl.reshape(pairs, [BLOCK_Q // 2, BLOCK_K])
            else:
                received += weights
    at = RECEIVED + (batch * heads + head).to(tl.int64) * k_len + columns
    found = tl.sum(received, 0)
    if first_step > 0:
        found += tl.load(at, mask=columns < k_len, other=0.0)
        tl.debug_barrier()  # several threads load each number, and one of them stores it
    tl.store(at, found, mask=columns < k_len)


@triton.jit
def relative_sizes(
    products, peak, rows, columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head, q_len, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, FULL: tl.constexpr,
):
    """2 to the scores less their row's largest; −1 where a key is hidden, 0 where that `peak` is inf."""
    scores = shown(
        products, columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head, tl.minimum(rows, q_len - 1), k_len, scale,
        cap, FORM, BIAS, CAP, FULL,
    )
    sizes = tl.exp2(scores * worth(scale, BIAS, CAP) - peak[:, None])
    if (not FULL) | (kind(BIAS) != "."):
        sizes = tl.where(scores == float("-inf"), -1.0, sizes)
    return sizes


@triton.jit
def packed(sizes, columns):
    """A positive size and its column as one whole number: larger sizes first, then lower columns."""
    return (sizes.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
