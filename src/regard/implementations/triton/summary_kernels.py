"""The kernels of `summarize`: statistics of all weights, in two passes over the scores.

The first walk goes along the rows: log-sum-exp, entropy, and a bar that at least `top` keys of the row reach. (The keys
fall into lanes; the top-th largest of the lanes' maxima is reached by `top` keys, and by few others.) The second goes
along the columns: it adds up what each key receives, without any two programs writing to one place, and notes the few
keys that reach their row's bar. `summary_order.py` puts what was noted in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.block_schedule import block_of_step, key_blocks, query_blocks
from regard.implementations.triton.device_functions import final_scores, kind, visible

LENGTHS = ["q_len", "k_len", "heads", "group", "top", "edges", "TABLE_STRIDES", "LIST_STRIDES"]


@triton.jit
def scored(
    query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, rows, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Scores of a block of queries and the keys from `start` on; −inf where hidden. See `worth` for their unit."""
    inside, wide = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    columns = start + inside
    K += start.to(tl.int64) * K_STRIDES[2]
    at = K + inside[None, :] * K_STRIDES[2] + wide[:, None]
    if FULL:
        key = tl.load(at, mask=wide[:, None] < D, other=0.0)
    else:
        key = tl.load(at, mask=(columns < k_len)[None, :] & (wide[:, None] < D), other=0.0)
    return _shown(
        tl.dot(query, key, input_precision=PRECISION), columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head, rows,
        k_len, scale, cap, FORM, BIAS, CAP, FULL,
    )  # fmt: skip


@triton.jit
def _shown(
    products, columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head, rows, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    safe = columns if FULL else tl.minimum(columns, k_len - 1)
    scores = products
    if CAP or kind(BIAS) != ".":
        scores, _ = final_scores(
            products, BIAS, CAP, False, TABLES, TABLE_STRIDES, NUMBERS, scale, cap, batch, head,
            rows[:, None], safe[None, :],
        )  # fmt: skip
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
):  # fmt: skip
    """For each row: log-sum-exp and entropy; its largest score (in powers of two), what 1 is worth there as a weight,
    and the bar, in the same unit, that at least `top` keys reach."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, wide = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    safe_rows = tl.minimum(rows, q_len - 1)
    Q += batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
    K += batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1]
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += line.to(tl.int64) * LIST_STRIDES[2]
    COUNTS += line * 2
    query = tl.load(
        Q + rows[:, None].to(tl.int64) * Q_STRIDES[2] + wide[None, :],
        mask=(rows[:, None] < q_len) & (wide[None, :] < D), other=0.0,
    )  # fmt: skip
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
            query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, safe_rows, k_len, scale, cap,
            FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K, True,
        )  # fmt: skip
        peak, total, spread, lanes = _gather(
            peak, total, spread, lanes, scores, unit, BLOCK_Q, BLOCK_K, LANES
        )
    for step in tl.range(0, partial):
        start = block_of_step(FORM, LIST, step, first, before, full_first, False, full) * BLOCK_K
        scores = scored(
            query, K, start, K_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head, safe_rows, k_len, scale, cap,
            FORM, BIAS, CAP, PRECISION, D, BLOCK_D, BLOCK_K, False,
        )  # fmt: skip
        peak, total, spread, lanes = _gather(
            peak, total, spread, lanes, scores, unit, BLOCK_Q, BLOCK_K, LANES
        )

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
    peak,
    total,
    spread,
    lanes,
    scores,
    unit,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LANES: tl.constexpr,
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
    Q, K, PEAK, SHARE, BAR, COUNT, FOUND, RECEIVED, FLAGS, LINES, EDGES, LIST, COUNTS, TABLES, TABLE_STRIDES, NUMBERS,
    Q_STRIDES, K_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, edges, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    ROOM: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """For each key the sum of its weights; and for each row the keys that reach its bar, in any order.

    Few rows have such a key in one block. To look for it everywhere would cost more than all the rest, so a walk over
    `STRETCH` blocks of queries only flags the rows; those are then collected and looked at again, closely packed.
    """
    block = tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    start = block * BLOCK_K
    columns, inside, wide = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    HIDES: tl.constexpr = kind(BIAS) != "."  # a bias of −inf hides, too
    Q += batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
    K += batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1]
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += line.to(tl.int64) * LIST_STRIDES[2]
    rows_before = (batch * heads + head).to(tl.int64) * q_len
    PEAK += rows_before
    SHARE += rows_before
    BAR += rows_before
    COUNT += rows_before
    FOUND += rows_before * ROOM
    mine = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + block
    FLAGS += mine * STRETCH * BLOCK_Q
    LINES += mine * STRETCH * BLOCK_Q
    key = tl.load(
        K + columns[None, :].to(tl.int64) * K_STRIDES[2] + wide[:, None],
        mask=(columns < k_len)[None, :] & (wide[:, None] < D), other=0.0,
    )  # fmt: skip
    partial, full, first, before, full_first = query_blocks(
        FORM, TABLE_STRIDES, EDGES + batch * LIST_STRIDES[3], COUNTS + line * 2, edges, q_len, start, k_len, BLOCK_Q,
        BLOCK_K,
    )  # fmt: skip
    # Rows r and r + 8 of a product lie in one thread, so that adding them needs no exchange and saves registers. With a
    # bias the layout may differ, and Triton 3.6 then counts some rows twice, so such products are not folded.
    FOLD: tl.constexpr = 1 if HIDES or CAP else 2
    received = tl.zeros([BLOCK_Q // FOLD, BLOCK_K], tl.float32)
    for FULL in tl.static_range(1, -1, -1):
        steps = full if FULL else partial
        for stretch in range(0, steps, STRETCH):
            end = tl.minimum(stretch + STRETCH, steps)
            for step in tl.range(stretch, end):
                begin = block_of_step(FORM, LIST, step, first, before, full_first, FULL, full) * BLOCK_Q
                rows = begin + inside
                sizes = _sizes(
                    Q + begin.to(tl.int64) * Q_STRIDES[2], tl.minimum(inside, q_len - 1 - begin), key, rows,
                    rows < q_len, columns, PEAK, Q_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head,
                    q_len, k_len, scale, cap, FORM, BIAS, CAP, PRECISION, D, BLOCK_D, FULL,
                )  # fmt: skip
                bar = tl.load(BAR + rows, mask=rows < q_len, other=float("inf"))
                tl.store(FLAGS + (step - stretch) * BLOCK_Q + inside, (tl.max(sizes, 1) >= bar).to(tl.int8))
                share = tl.load(SHARE + rows, mask=rows < q_len, other=0.0)
                weights = sizes * share[:, None]
                if HIDES or not FULL:  # a key hidden from a row of NaN receives nothing
                    weights = tl.where(sizes < 0.0, 0.0, weights)
                if FOLD == 2:
                    pairs = tl.sum(tl.reshape(weights, [BLOCK_Q // 16, 2, 8, BLOCK_K]), 1)
                    received += tl.reshape(pairs, [BLOCK_Q // 2, BLOCK_K])
                else:
                    received += weights
            tl.debug_barrier()
            count = _collect(
                FLAGS,
                LINES,
                LIST,
                stretch,
                end,
                first,
                before,
                full_first,
                full,
                FORM,
                FULL,
                BLOCK_Q,
                STRETCH,
            )
            tl.debug_barrier()
            for chosen in range(0, count, BLOCK_Q):
                real = chosen + inside < count
                rows = tl.load(LINES + chosen + inside, mask=real, other=0)
                sizes = _sizes(
                    Q, rows.to(tl.int64), key, rows, real, columns, PEAK, Q_STRIDES, TABLES, TABLE_STRIDES, NUMBERS,
                    batch, head, q_len, k_len, scale, cap, FORM, BIAS, CAP, PRECISION, D, BLOCK_D, FULL,
                )  # fmt: skip
                _note(
                    sizes,
                    columns,
                    rows,
                    tl.load(BAR + rows, mask=real, other=float("inf")),
                    COUNT,
                    FOUND,
                    ROOM,
                )
            tl.debug_barrier()
    at = RECEIVED + (batch * heads + head).to(tl.int64) * k_len + columns
    tl.store(at, tl.sum(received, 0), mask=columns < k_len)


@triton.jit
def _collect(
    FLAGS, LINES, LIST, stretch, end, first, before, full_first, full,
    FORM: tl.constexpr, FULL: tl.constexpr, BLOCK_Q: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """Write the flagged rows of a segment one after the other; return their number."""
    index = tl.arange(0, STRETCH * BLOCK_Q)
    step = tl.minimum(stretch + index // BLOCK_Q, end - 1)
    rows = block_of_step(FORM, LIST, step, first, before, full_first, FULL, full) * BLOCK_Q + index % BLOCK_Q
    flagged = tl.load(FLAGS + index, mask=index < (end - stretch) * BLOCK_Q, other=0).to(tl.int32)
    tl.store(LINES + tl.cumsum(flagged, 0) - 1, rows, mask=flagged != 0)
    return tl.sum(flagged, 0)


@triton.jit
def _sizes(
    Q, offset, key, rows, real, columns, PEAK, Q_STRIDES, TABLES, TABLE_STRIDES, NUMBERS, batch, head,
    q_len, k_len, scale, cap,
    FORM: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Of some rows and a block of keys: 2 to the scores less the row's largest; −1 where a key is hidden.

    Rows that are not `real` read another's query (`offset` rows from Q on), and their sizes are 0.
    """
    wide = tl.arange(0, BLOCK_D)
    query = tl.load(Q + offset[:, None] * Q_STRIDES[2] + wide[None, :], mask=(wide < D)[None, :], other=0.0)
    peak = tl.load(PEAK + rows, mask=real, other=float("inf"))
    scores = _shown(
        tl.dot(query, key, input_precision=PRECISION), columns, TABLES, TABLE_STRIDES, NUMBERS, batch, head,
        tl.minimum(rows, q_len - 1), k_len, scale, cap, FORM, BIAS, CAP, FULL,
    )  # fmt: skip
    sizes = tl.exp2(scores * worth(scale, BIAS, CAP) - peak[:, None])
    if (not FULL) | (kind(BIAS) != "."):
        sizes = tl.where(scores == float("-inf"), -1.0, sizes)
    return sizes


@triton.jit
def _note(sizes, columns, rows, bar, COUNT, FOUND, ROOM: tl.constexpr):
    """Append the keys that reach the bar to the candidate lists of their rows, the largest of each row first."""
    largest = tl.max(sizes, 1)
    live = largest >= bar
    while tl.max(live.to(tl.int32), 0) > 0:
        column = tl.min(tl.where(sizes == largest[:, None], columns[None, :], 0x7FFFFFFF), 1)
        slot = tl.atomic_add(COUNT + rows, 1, mask=live, sem="relaxed")
        live &= slot < ROOM  # a row with more has to be searched anyway
        tl.store(FOUND + rows.to(tl.int64) * ROOM + slot, packed(largest, column), mask=live)
        sizes = tl.where(columns[None, :] == column[:, None], -1.0, sizes)
        largest = tl.max(sizes, 1)
        live &= largest >= bar


@triton.jit
def packed(sizes, columns):
    """A positive size and its column as one whole number: larger sizes first, then lower columns."""
    return (sizes.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
