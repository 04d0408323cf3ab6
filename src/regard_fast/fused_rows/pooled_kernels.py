"""The end of a classifier as one kernel: last normalisation, mean over rows, logits, cross-entropy, and the way back.

    p = mean over rows of norm(x),   z = W p + b,   loss as in `head_kernels.py`

One program for each example, which has one row of logits: too few for a matrix unit, so they are sums of products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_fast.fused_rows.head_kernels import IGNORED, LOWEST
from regard_fast.fused_rows.kernels import _block, _normalized, _normalized_back


@triton.jit
def _logits(WEIGHT, BIAS, p, column, d, V: tl.constexpr, D: tl.constexpr, HAS_BIAS: tl.constexpr, DT: tl.constexpr,
            WIDE: tl.constexpr):
    """A tile of the weight as it is multiplied, and the logits from it, both 0 at padding."""
    known = column < V
    weight = tl.load(_block(WEIGHT, column, d, D), mask=known[:, None], other=0.0).to(DT).to(WIDE)
    z = tl.sum(weight * p[None, :], 1)
    if HAS_BIAS:
        z += tl.load(BIAS + column, mask=known, other=0.0).to(WIDE)
    return weight, z


@triton.jit
def pooled_loss(
    X, TARGET, KEEP, GAIN, SHIFT, WEIGHT, BIAS, PARTS, D_ROWS, KEPT, SUMS, length, eps, SMOOTHING: tl.constexpr,
    PITCH: tl.constexpr, VECTORS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_KEEP: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, J: tl.constexpr, TILE: tl.constexpr,
):
    """The loss of an example and whether it counts (PARTS), and the gradients of the sum of all losses.

    As `head_loss`, with an example in place of a block of rows: KEPT is (b,PITCH), SUMS (b,VECTORS). Of the padding of
    outputs nothing is written; the gradients made from it are cut off.
    """
    entry = tl.program_id(0)
    j, d, t = tl.arange(0, J), tl.arange(0, D), tl.arange(0, TILE)
    mean = tl.zeros([D], WIDE)
    for start in range(0, length, J):
        real = (start + j < length)[:, None]
        x = tl.load(_block(X, entry * length + start + j, d, D), mask=real, other=0.0).to(WIDE)
        hat, _ = _normalized(x, eps, D)  # rows of padding are 0
        mean += tl.sum(hat, 0)
    mean = mean / length
    gain = tl.load(GAIN + d).to(WIDE)
    low = (mean * gain + tl.load(SHIFT + d).to(WIDE)).to(DT)
    p = low.to(WIDE)
    target = tl.load(TARGET + entry).to(tl.int32)
    counted = tl.full([], 1.0, WIDE)
    if HAS_KEEP:
        counted = tl.where(tl.load(KEEP + entry) != 0, counted, 0.0).to(WIDE)
    asked = tl.where(target != IGNORED, counted, 0.0).to(WIDE)

    kept, sums = KEPT + entry * PITCH, SUMS + entry * VECTORS
    tl.store(kept + d, low)
    top, total = tl.full([], LOWEST, WIDE), tl.zeros([], WIDE)
    picked, whole = tl.zeros([], WIDE), tl.zeros([], WIDE)
    for c in range(0, V, TILE):  # once for the sum of exponentials, once for the gradients
        _, z = _logits(WEIGHT, BIAS, p, c + t, d, V, D, HAS_BIAS, DT, WIDE)
        low_z = tl.where(c + t < V, z, LOWEST).to(WIDE)
        higher = tl.maximum(top, tl.max(low_z, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(low_z - higher), 0)
        top = higher
        picked += tl.sum(tl.where(c + t == target, z, 0.0).to(WIDE), 0)
        whole += tl.sum(z, 0)
    log_sum = top + tl.log(total)
    dn = tl.zeros([D], WIDE)
    for c in range(0, V, TILE):
        weight, z = _logits(WEIGHT, BIAS, p, c + t, d, V, D, HAS_BIAS, DT, WIDE)
        known = c + t < V
        share = tl.exp(tl.where(known, z - log_sum, LOWEST))
        slope = share - (c + t == target).to(WIDE) * (1.0 - SMOOTHING) - SMOOTHING / V
        dz = tl.where(known, slope * asked, 0.0).to(WIDE)
        if HAS_BIAS:
            tl.store(sums + 2 * D + c + t, dz, mask=known)
        tl.store(kept + D + c + t, dz.to(DT), mask=known)
        dn += tl.sum(dz[:, None] * weight, 0)
    loss = log_sum - picked * (1.0 - SMOOTHING) - whole * (SMOOTHING / V)
    loss = tl.where((target >= 0) & (target < V), loss, float("nan"))  # as in `head_loss`
    tl.store(PARTS + 2 * entry, tl.where(asked != 0, loss, 0.0).to(WIDE))
    tl.store(PARTS + 2 * entry + 1, counted)
    tl.store(sums + d, dn * mean)
    tl.store(sums + D + d, dn)
    pull = (dn * gain / length)[None, :]
    for start in range(0, length, J):
        real = (start + j < length)[:, None]
        at = _block(X, entry * length + start + j, d, D)
        hat, rate = _normalized(tl.load(at, mask=real, other=0.0).to(WIDE), eps, D)
        into = _block(D_ROWS, entry * length + start + j, d, D)
        tl.store(into, _normalized_back(tl.zeros([J, D], WIDE) + pull, hat, rate, D), mask=real)
