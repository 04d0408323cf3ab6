"""Additive scores, weight·tanh(q + k), of pairs of queries and keys.

A tanh for every pair and dimension is too expensive, so as much as possible is computed once for each row: with
x = e^{2q}·e^{2k}, tanh(q + k) = (x − 1) / (x + 1), and two dimensions share one reciprocal, a/c + b/d = (ad + bc) / cd,
because reciprocals are slow on a GPU. Where the queries of a block are small, x − 1 is taken as
(e^{2q} − 1)·e^{2k} + (e^{2k} − 1), which keeps tiny sums exact. Where x could overflow, and where an entry is not
finite, the pair is computed directly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import block_of_step, key_blocks

_LENGTHS = [
    "of_queries", "heads", "shared", "group", "q_len", "k_len", "first_head", "first_block", "row_blocks",
    "TABLE_STRIDES", "LIST_STRIDES",
]
_RECIPROCAL = tl.constexpr("rcp.approx.ftz.f32 $0, $1;")
_POWER_OF_TWO = tl.constexpr("ex2.approx.ftz.f32 $0, $1;")


@triton.jit
def reciprocal(x, GPU: tl.constexpr):
    """1/x to the last bit or so by one instruction, where there is one."""
    if GPU:
        return tl.inline_asm_elementwise(_RECIPROCAL, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def tanh(x, GPU: tl.constexpr):
    """tanh of any x by itself, and a quarter of its slope, 1 − tanh²."""
    exponent = tl.abs(x) * -2.8853900817779268
    if GPU:
        power = tl.inline_asm_elementwise(_POWER_OF_TWO, "=f,f", [exponent], dtype=tl.float32, is_pure=True, pack=1)
    else:
        power = tl.exp2(exponent)
    share = reciprocal(power + 1.0, GPU)
    large, square = (1.0 - power) * share, x * x
    # Below 1/8 the quotient cancels; this series is exact to float32 there.
    series = -0.33333334 + square * (0.13333334 + square * (-0.05396825 + square * 0.02186949))
    curve = tl.where(tl.abs(x) < 0.125, x + x * square * series, tl.where(x < 0, -large, large))
    return curve, power * share * share


@triton.jit
def exponentials(x):
    """e^x and e^x − 1, both to the last bit or so, up to ±80."""
    power = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = (x - power * 0.693359375) + power * 2.12194440e-4
    series = 1.0 / 24 + rest * (1.0 / 120 + rest * (1.0 / 720 + rest * (1.0 / 5040)))
    expm1 = rest + rest * rest * (0.5 + rest * (1.0 / 6 + rest * series))
    scale = ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return scale * expm1 + scale, scale * expm1 + (scale - 1.0)


@triton.jit
def is_fast(of_queries, of_keys):
    """Whether blocks with these largest magnitudes may multiply exponentials: the product of two x is finite."""
    return of_queries + of_keys <= 16.0


@triton.jit
def is_small(of_queries):
    """Whether a block of queries with this largest magnitude takes the form that keeps tiny sums exact."""
    return of_queries <= 1.0


@triton.jit(do_not_specialize=_LENGTHS)
def prepare_rows(
    Q, K, WEIGHT, TRANSPOSED_Q, TRANSPOSED_K, POWERS_Q, POWERS_K, EXPM1, LARGEST_Q, LARGEST_K, Q_STRIDES, K_STRIDES,
    weight_stride, of_queries, heads, shared, q_len, k_len, scale,
    BACKWARD: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """What pairs need of each row: `of_queries` programs for queries, the others for keys."""
    if tl.program_id(0) < of_queries:
        _prepare(
            tl.program_id(0), Q, WEIGHT, TRANSPOSED_Q, POWERS_Q, POWERS_Q, LARGEST_Q, Q_STRIDES, weight_stride, heads,
            q_len, scale, True, BACKWARD, D, WIDE, BLOCK, BLOCK_D,
        )
    else:
        _prepare(
            tl.program_id(0) - of_queries, K, WEIGHT, TRANSPOSED_K, POWERS_K, EXPM1, LARGEST_K, K_STRIDES,
            weight_stride, shared, k_len, scale, False, BACKWARD, D, WIDE, BLOCK, BLOCK_D,
        )


@triton.jit
def _prepare(
    program, ROWS, WEIGHT, TRANSPOSED, POWERS, EXPM1, LARGEST, STRIDES, weight_stride, heads, length, scale,
    QUERY: tl.constexpr, BACKWARD: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The largest magnitude of a block of rows (1e30 for what is not finite) and some dimensions' exponentials.

    TRANSPOSED (WIDE, 2, length) holds for queries e^{2q} (e^{2q} − 1 in small blocks), plain and times the weight; for
    keys e^{2k} and e^{2k} − 1. POWERS (length, WIDE) is e^{2x} and EXPM1 is e^{2k} − 1. All lengths are padded.
    """
    COLUMNS: tl.constexpr = WIDE // BLOCK_D
    blocks, line = tl.cdiv(length, BLOCK), program // COLUMNS
    both, block = (line // blocks).to(tl.int64), line % blocks
    inside, across = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    rows = ROWS + both // heads * STRIDES[0] + both % heads * STRIDES[1]
    rows += inside[:, None].to(tl.int64) * STRIDES[2]
    weights = WEIGHT + both % heads * weight_stride
    largest = 0.0
    for start in tl.static_range(0, WIDE, BLOCK_D):
        real = (inside < length)[:, None] & (start + across < D)[None, :]
        found = tl.abs(tl.load(rows + start + across[None, :], mask=real, other=0.0).to(tl.float32))
        largest = tl.maximum(largest, tl.max(tl.max(tl.where(found <= 1e30, found, 1e30), 1), 0))
        if QUERY:
            weight = tl.abs(tl.load(weights + start + across, mask=start + across < D, other=0.0).to(tl.float32))
            largest = tl.maximum(largest, tl.max(tl.where(weight * tl.abs(scale) <= 1e6, 0.0, 1e30), 0))
    tl.store(LARGEST + line, largest)
    across += program % COLUMNS * BLOCK_D
    real = (inside < length)[:, None] & (across < D)[None, :]
    found = tl.load(rows + across[None, :], mask=real, other=0.0).to(tl.float32)
    power, expm1 = exponentials(2.0 * tl.where(tl.abs(found) <= 20.0, found, 0.0))  # beyond, nobody asks
    base = both * blocks * BLOCK * WIDE
    transposed = TRANSPOSED + base * 2 + across[None, :] * (2 * blocks * BLOCK) + inside[:, None]
    natural = base + inside[:, None] * WIDE + across[None, :]
    if QUERY:
        left = tl.where(is_small(largest), expm1, power)
        weight = tl.load(weights + across, mask=across < D, other=0.0).to(tl.float32) * scale
        tl.store(transposed, left)
        tl.store(transposed + blocks * BLOCK, left * weight[None, :])
    else:
        tl.store(transposed, power)
        tl.store(transposed + blocks * BLOCK, expm1)
    if BACKWARD:
        tl.store(POWERS + natural, power)
        if not QUERY:
            tl.store(EXPM1 + natural, expm1)


@triton.jit
def block_of(FORM: tl.constexpr, LIST, step, first, before, full_first, full):
    """The block visited in step number `step`, where full ones come first."""
    if step < full:
        block = block_of_step(FORM, LIST, step, first, before, full_first, True, full)
    else:
        block = block_of_step(FORM, LIST, step - full, first, before, full_first, False, full)
    return block


@triton.jit(do_not_specialize=_LENGTHS)
def score_tiles(
    TRANSPOSED_Q, TRANSPOSED_K, Q, K, WEIGHT, LARGEST_Q, LARGEST_K, STRIP, LIST, COUNTS, TABLES, TABLE_STRIDES,
    LIST_STRIDES, Q_STRIDES, K_STRIDES, weight_stride, heads, group, q_len, k_len, first_head, first_block, row_blocks,
    scale,
    FORM: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    GPU: tl.constexpr,
):
    """Scores of one visible tile, written to the strip (heads, rows, padded keys)."""
    k_blocks, q_blocks = tl.cdiv(k_len, BLOCK_K), tl.cdiv(q_len, BLOCK_Q)
    q_pitch, k_pitch = q_blocks * BLOCK_Q, k_blocks * BLOCK_K
    step, line = tl.program_id(0) % k_blocks, tl.program_id(0) // k_blocks
    block, both = first_block + line % row_blocks, first_head + line // row_blocks
    batch, head = both // heads, both % heads
    shared = batch * (heads // group) + head // group
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    partial, full, first, before, full_first = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, tl.minimum(rows, q_len - 1), k_len, BLOCK_K
    )
    if step < partial + full:
        chosen = block_of(FORM, LIST, step, first, before, full_first, full)
        columns = chosen * BLOCK_K + tl.arange(0, BLOCK_K)
        of_queries = tl.load(LARGEST_Q + both * q_blocks + block)
        WEIGHT += head * weight_stride
        lefts = TRANSPOSED_Q + both.to(tl.int64) * q_pitch * (2 * WIDE) + rows
        rights = TRANSPOSED_K + shared.to(tl.int64) * k_pitch * (2 * WIDE) + columns
        scores = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        of_keys = tl.load(LARGEST_K + shared * k_blocks + chosen)
        if is_fast(of_queries, of_keys):
            if is_small(of_queries):
                scores = _sums(lefts, rights, WEIGHT, scale, q_pitch, k_pitch, D, BLOCK_Q, BLOCK_K, True, GPU)
            else:
                scores = _sums(lefts, rights, WEIGHT, scale, q_pitch, k_pitch, D, BLOCK_Q, BLOCK_K, False, GPU)
        else:
            queries = Q + batch.to(tl.int64) * Q_STRIDES[0] + head.to(tl.int64) * Q_STRIDES[1]
            queries += rows.to(tl.int64) * Q_STRIDES[2]
            keys = K + batch.to(tl.int64) * K_STRIDES[0] + (head // group).to(tl.int64) * K_STRIDES[1]
            keys += columns.to(tl.int64) * K_STRIDES[2]
            for start in tl.range(0, D, 16):
                few = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
                for one in tl.range(start, tl.minimum(start + 16, D)):
                    query = tl.load(queries + one, mask=rows < q_len, other=0.0).to(tl.float32)
                    key = tl.load(keys + one, mask=columns < k_len, other=0.0).to(tl.float32)
                    weight = tl.load(WEIGHT + one).to(tl.float32) * scale
                    curve, _ = tanh(query[:, None] + key[None, :], GPU)
                    few += weight * curve
                scores += few
        inside = line * BLOCK_Q + tl.arange(0, BLOCK_Q)
        tl.store(STRIP + inside[:, None].to(tl.int64) * k_pitch + columns[None, :], scores)


@triton.jit
def _sums(
    lefts, rights, WEIGHT, scale, q_pitch, k_pitch, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SMALL: tl.constexpr, GPU: tl.constexpr,
):
    """Σ weight · (x − 1) / (x + 1) over all dimensions, of which two share a reciprocal."""
    nothing = tl.zeros([BLOCK_Q, 16], tl.float32)
    # The result of a matrix product leaves each thread squares of scores, and so fewer rows and columns to load.
    nothing = tl.dot(nothing, tl.zeros([16, BLOCK_K], tl.float32), input_precision="ieee")
    scores = nothing
    for start in tl.range(0, D, 16):
        # Sums of a few dimensions first: adding each to the whole would lose more to rounding.
        few = nothing
        for two in tl.range(start, tl.minimum(start + 16, D), 2):
            above, below = _of_two(lefts, rights, WEIGHT, two, scale, q_pitch, k_pitch, D, SMALL)
            few += above * reciprocal(below, GPU)
        scores += few
    return scores


@triton.jit
def _of_two(lefts, rights, WEIGHT, two, scale, q_pitch, k_pitch, D: tl.constexpr, SMALL: tl.constexpr):
    """What two dimensions contribute to the scores of a tile, as a fraction."""
    lefts += two * (2 * q_pitch)
    rights += two * (2 * k_pitch)
    left_1, heavy_1 = tl.load(lefts), tl.load(lefts + q_pitch)
    left_2, heavy_2 = tl.load(lefts + 2 * q_pitch), tl.load(lefts + 3 * q_pitch)
    right_1, right_2 = tl.load(rights), tl.load(rights + 2 * k_pitch)
    weight_1 = tl.load(WEIGHT + two, mask=two < D, other=0.0).to(tl.float32) * scale
    weight_2 = tl.load(WEIGHT + two + 1, mask=two + 1 < D, other=0.0).to(tl.float32) * scale
    if SMALL:
        less_1, less_2 = tl.load(rights + k_pitch), tl.load(rights + 3 * k_pitch)
        above_1 = heavy_1[:, None] * right_1[None, :] + (weight_1 * less_1)[None, :]
        above_2 = heavy_2[:, None] * right_2[None, :] + (weight_2 * less_2)[None, :]
        below_1 = left_1[:, None] * right_1[None, :] + (less_1 + 2.0)[None, :]
        below_2 = left_2[:, None] * right_2[None, :] + (less_2 + 2.0)[None, :]
    else:
        above_1 = heavy_1[:, None] * right_1[None, :] - weight_1
        above_2 = heavy_2[:, None] * right_2[None, :] - weight_2
        below_1 = left_1[:, None] * right_1[None, :] + 1.0
        below_2 = left_2[:, None] * right_2[None, :] + 1.0
    return above_1 * below_2 + above_2 * below_1, below_1 * below_2
