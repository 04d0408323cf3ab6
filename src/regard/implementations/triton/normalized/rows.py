"""Two numbers of each row for hard, sparsemax and entmax15: its largest score, and its threshold or chosen key.

Weights of sparsemax and entmax15 are (s − τ)₊ᵖ with s = (score − largest)/p, p = 1 or 2, and τ is such that they sum
to 1. A walk over the keys computes dot products only, so few walks matter:

- One walk finds the largest score and, on the way, the τ of the keys that it has seen, from three sums over those
  above it: A = Σ(s − τ)², B = Σ(s − τ) and C = their number. They are −½dA/dτ = B and −dB/dτ = C, which determine a
  curve A = c·(y − τ)ᵏ: from equal scores (k = 2) to those that fall off like powers. Along this curve τ moves to
  where the sum of weights is 1, and the sums with it, although nobody has looked which keys fell below τ.
- Each further walk takes the sums of all keys at one τ and moves it in the same way (entmax15), or by Newton's step
  (sparsemax, and entmax15 after a few). Steps end when what is left is bounded below the tolerance. Random scores take
  two such walks for entmax15 (three in float32), three or four for sparsemax, at every length.

Newton's steps on the p-norm of (s − τ)₊, which is convex and falls with τ, arrive from every τ: the first leaves it at
or below its place, and from there it rises. So it is only the speed that depends on the curve.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.implementations.triton.launch.block_schedule import key_blocks, next_block
from regard.implementations.triton.launch.device_functions import rows_of
from regard.implementations.triton.normalized.forward import DATA, block_of_queries, power, tile_scores, to_be_nan

CURVED_STEPS = 4  # walks in which entmax15 follows the curve
MOST_WALKS = 64


@triton.jit
def step_along_curve(squares, sums, count, POWER: tl.constexpr):
    """How far τ is from where the weights sum to 1, and the three sums there, by the curve A = c·(y − τ)ᵏ."""
    inverse = 1.0 / sums
    ratio = 0.5 * squares * inverse
    one_over_k = tl.minimum(tl.maximum(1.0 - ratio * count * inverse, -1.0), 0.5)
    # The logarithm to base 2 of how much A changes.
    if POWER == 2:
        change = -tl.log2(squares)
    else:
        change = -tl.log2(sums) / (1.0 - one_over_k)
    part = one_over_k * change * 0.6931471805599453
    # (1 − e^part)/one_over_k, which is 0/0 for an exponential, where one_over_k is 0.
    far = (1.0 - tl.exp2(one_over_k * change)) / tl.where(one_over_k == 0.0, 1.0, one_over_k)
    near = -0.6931471805599453 * change * (1.0 + part * (0.5 + part * 0.16666667))
    step = ratio * tl.where(tl.abs(part) < 0.03, near, far)
    fall, less = tl.exp2(change), tl.exp2(-one_over_k * change)
    return step, squares * fall, sums * (fall * less), count * (fall * less * less)


@triton.jit
def sums_above(placed, APPROXIMATE: tl.constexpr):
    """Σ(s − τ)², Σ(s − τ) and the number of those scores of each row that lie above τ; NaN if one is NaN."""
    above = tl.maximum(placed, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if APPROXIMATE:  # one instruction; Triton takes two
        ones = tl.inline_asm_elementwise(
            "set.gt.f32.f32 $0, $1, 0f00000000;", "=f,f", [placed], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        ones = (placed > 0.0).to(tl.float32)
    return tl.sum(above * above, 1), tl.sum(above, 1), tl.sum(ones, 1)


@triton.jit
def with_largest(squares, sums, count, threshold):
    """The sums, at least those of the largest score alone: it always lies above τ, and nothing is divided by 0."""
    return tl.maximum(squares, threshold * threshold), tl.maximum(sums, -threshold), tl.maximum(count, 1.0)


@triton.jit(do_not_specialize=DATA)
def find_rows(
    Q, K, LARGEST, CHOICE, SEEN, LIST, COUNTS, ORDER, TABLES, TABLE_STRIDES, NUMBERS, Q_STRIDES, K_STRIDES,
    SEEN_STRIDES, LIST_STRIDES, heads, group, q_len, k_len, padded_rows, scale, cap, tolerance,
    KIND: tl.constexpr, CURVED: tl.constexpr, MOST: tl.constexpr, FORM: tl.constexpr, BIAS: tl.constexpr,
    CAP: tl.constexpr, HIDES: tl.constexpr, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr, BULK: tl.constexpr,
):
    """One program for each block of queries, head and batch entry. `BULK`: K is a descriptor.

    LARGEST gets the largest score in the unit of `KIND`, +inf for a row that sees nothing or is none, NaN for one that
    is to be NaN; CHOICE gets τ, or the index of the chosen key (−1: none). Both are (lines, padded_rows).
    """
    POWER: tl.constexpr = power(KIND)
    block, batch, head, shared = block_of_queries(ORDER, heads, group, q_len, BLOCK_Q, ORDERED)
    start_q = block * BLOCK_Q
    rows = start_q + tl.arange(0, BLOCK_Q)
    SEEN += batch * SEEN_STRIDES[0] + shared * SEEN_STRIDES[1]
    entry = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + block
    LIST += entry.to(tl.int64) * LIST_STRIDES[2]
    query = rows_of(Q, Q_STRIDES, batch, head, start_q, rows < q_len, D, BLOCK_Q, BLOCK_D, False)
    nonfinite, spoilt = to_be_nan(query, CAP)
    safe_rows = tl.minimum(rows, q_len - 1)
    partial, full, first, before, _unused = key_blocks(
        FORM, TABLES, TABLE_STRIDES, COUNTS + entry * 2, batch, safe_rows, k_len, BLOCK_K
    )
    steps = partial + full
    nothing = tl.zeros([BLOCK_Q], tl.float32)

    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    is_nan = tl.zeros([BLOCK_Q], tl.int32)
    chosen = tl.full([BLOCK_Q], 0x7FFFFFFF, tl.int32)
    threshold = tl.full([BLOCK_Q], -1.0, tl.float32)
    squares, sums = tl.full([BLOCK_Q], 1.0, tl.float32), tl.full([BLOCK_Q], 1.0, tl.float32)
    count = tl.zeros([BLOCK_Q], tl.float32)
    # n scores of at most 0 weigh at most n·(−τ)ᵖ, so τ is not above −n^(−1/p); half of it leaves room for rounding.
    top = k_len.to(tl.float32)
    top = -0.5 * (1.0 / tl.sqrt(top) if POWER == 2 else 1.0 / top)
    for step in tl.range(0, steps):
        start, partly = next_block(FORM, LIST, step, first, before, full)
        partly |= spoilt
        scores, _key, _real, _tanh = tile_scores(
            query, nothing, nonfinite, start * BLOCK_K, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS,
            K_STRIDES, batch, head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE,
            PRECISION, D, BLOCK_D, BLOCK_K, BULK, KIND,
        )
        best = tl.max(scores, 1)
        highest = tl.maximum(largest, best)
        if KIND == "hard":  # blocks do not come in order: of equal scores the lowest key is searched
            is_nan = tl.maximum(is_nan, tl.max((scores != scores).to(tl.int32), 1))  # a maximum need not keep a NaN
            columns = start * BLOCK_K + tl.arange(0, BLOCK_K)
            place = tl.min(tl.where(scores == best[:, None], columns[None, :], 0x7FFFFFFF), 1)
            better = (best > largest) | ((best == largest) & (place < chosen))
            chosen = tl.where(better, place, chosen)
        else:
            # τ counts from the largest score. Where a new one leaves it below −1, it is raised, and the sums fade.
            threshold -= tl.where(largest == float("-inf"), 0.0, highest - largest)
            raised = tl.maximum(-1.0 - threshold, 0.0)
            fade = tl.maximum(1.0 - raised * sums / squares, 0.0)
            squares, sums, count = squares * fade * fade, sums * fade, count * fade
            threshold = tl.maximum(threshold, -1.0)
            steady = tl.where(highest == float("-inf"), 0.0, highest)
            # (Exact is only what follows, so that one subtraction will do.)
            more_squares, more_sums, more = sums_above(scores - (steady + threshold)[:, None], APPROXIMATE)
            is_nan = tl.where(more_sums == more_sums, is_nan, 1)
            squares, sums, count = with_largest(squares + more_squares, sums + more_sums, count + more, threshold)
            change, squares, sums, count = step_along_curve(squares, sums, count, POWER)
            threshold = tl.minimum(tl.maximum(threshold + change, -1.0), top)
        largest = highest
    empty = largest == float("-inf")
    if POWER > 0:
        is_nan = tl.where(largest == float("inf"), 1, is_nan)
        steady = tl.where(empty | (is_nan == 1), 0.0, largest)
        moving, turn = steps * 0 + 1, steps * 0
        while (moving > 0) & (turn < MOST):
            squares = tl.zeros([BLOCK_Q], tl.float32)
            sums = tl.zeros([BLOCK_Q], tl.float32)
            count = tl.zeros([BLOCK_Q], tl.float32)
            for step in tl.range(0, steps):
                start, partly = next_block(FORM, LIST, step, first, before, full)
                partly |= spoilt
                scores, _key, _real, _tanh = tile_scores(
                    query, steady, nonfinite, start * BLOCK_K, partly, K, SEEN, TABLES, TABLE_STRIDES, NUMBERS,
                    K_STRIDES, batch, head, shared, safe_rows, k_len, scale, cap, FORM, BIAS, CAP, HIDES, APPROXIMATE,
                    PRECISION, D, BLOCK_D, BLOCK_K, BULK, KIND,
                )
                more_squares, more_sums, more = sums_above(scores - threshold[:, None], APPROXIMATE)
                squares, sums, count = squares + more_squares, sums + more_sums, count + more
            squares, sums, count = with_largest(squares, sums, count, threshold)
            if POWER == 2:
                norm = tl.sqrt(squares)
                curved, _squares, _sums, _count = step_along_curve(squares, sums, count, POWER)
                change = tl.where(turn < CURVED, curved, (norm - 1.0) * norm / sums)
                # Each key that τ passes puts the sum off by change² at most. Those above τ are counted, those below
                # are not; so a step that is not the last one stays a little below its aim.
                passed = tl.where(change < 0.0, k_len.to(tl.float32), count)
                off = passed * change * change / (2.0 * sums)
                change -= tl.where((off > tolerance) & (turn < CURVED), tl.abs(change) * 0.015625, 0.0)
            else:  # there it is change itself, so τ has to stay
                change = (sums - 1.0) / count
                off = tl.abs(change)
            done = empty | (is_nan == 1)
            moved = tl.minimum(tl.maximum(threshold + change, -1.0), top)
            threshold = tl.where(done, threshold, moved)
            off = tl.where(done, 0.0, off)
            moving = tl.max((off > tolerance).to(tl.int32), 0)
            turn += 1
    choice = threshold
    if KIND == "hard":
        choice = tl.where(empty, -1, chosen).to(tl.float32)
    largest = tl.where(is_nan == 1, float("nan"), tl.where(empty, float("inf"), largest))
    at = (batch * heads + head).to(tl.int64) * padded_rows + rows
    tl.store(LARGEST + at, tl.where(rows < q_len, largest, float("inf")))
    tl.store(CHOICE + at, choice)
