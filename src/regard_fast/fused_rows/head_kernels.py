"""The end of a model as one kernel: last normalisation, map to logits, cross-entropy, and the way back to the rows.

    z = W norm(x) + b        loss of a row: logsumexp(z) − (1 − s) z_target − s mean(z), with label smoothing s

The gradients are those of the sum of all losses. Whoever knows how that sum is used multiplies them: they are a factor
of one number from what the backward pass asks for, so nothing has to be computed twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard_fast.fused_rows.kernels import _block, _normalized, _normalized_back

IGNORED = tl.constexpr(-100)  # the target that torch's cross_entropy ignores
LOWEST = tl.constexpr(-1e30)  # in place of the logits of padding; finite, so that no difference of two is undefined


@triton.jit
def _tile(WEIGHT, BIAS, n, column, d, V: tl.constexpr, D: tl.constexpr, HAS_BIAS: tl.constexpr, DT: tl.constexpr,
          WIDE: tl.constexpr):
    """A tile of the weight and the logits from it, both 0 at padding."""
    known = column < V
    weight = tl.load(_block(WEIGHT, column, d, D), mask=known[:, None], other=0.0).to(DT)
    z = tl.dot(n, tl.trans(weight))
    if HAS_BIAS:
        z += tl.load(BIAS + column, mask=known, other=0.0).to(WIDE)[None, :]
    return weight, z


@triton.jit
def _slopes(z, column, target, asked, log_sum, SMOOTHING: tl.constexpr, V: tl.constexpr):
    """The gradients of logits; 0 at padding and where nothing is asked."""
    known = (column < V)[None, :]
    share = tl.exp(tl.where(known, z - log_sum[:, None], LOWEST))
    right = (column[None, :] == target[:, None]).to(z.dtype)
    slope = share - right * (1.0 - SMOOTHING) - SMOOTHING / V
    return tl.where(asked[:, None] & known, slope, 0.0).to(z.dtype)


@triton.jit
def head_loss(
    X, TARGET, KEEP, GAIN, SHIFT, WEIGHT, BIAS, PARTS, D_ROWS, KEPT, SUMS, rows, eps, SMOOTHING: tl.constexpr,
    PITCH: tl.constexpr, VECTORS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, PADDED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEEP: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr,
):
    """The loss of a block of rows and how many count (PARTS), and the gradients of the sum of all losses.

    D_ROWS gets the gradient of the rows, KEPT (rows,PITCH) normalised rows and gradients of the logits, SUMS
    (blocks,VECTORS) the block's share of the gradients of gain, shift and bias.
    """
    row, d, t = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D), tl.arange(0, TILE)
    inside = row < rows
    real = inside[:, None]
    x = tl.load(_block(X, row, d, D), mask=real, other=0.0).to(WIDE)
    hat, rate = _normalized(x, eps, D)
    gain = tl.load(GAIN + d).to(WIDE)[None, :]
    n = (hat * gain + tl.load(SHIFT + d).to(WIDE)[None, :]).to(DT)
    target = tl.load(TARGET + row, mask=inside, other=IGNORED).to(tl.int32)
    counted = inside
    if HAS_KEEP:
        counted = inside & (tl.load(KEEP + row, mask=inside, other=0) != 0)
    asked = counted & (target != IGNORED)

    kept = KEPT + row[:, None] * PITCH
    sums = SUMS + tl.program_id(0) * VECTORS
    tl.store(kept + d[None, :], n, mask=real)
    if PADDED == TILE:  # logits stay in registers
        weight, z = _tile(WEIGHT, BIAS, n, t, d, V, D, HAS_BIAS, DT, WIDE)
        low = tl.where((t < V)[None, :], z, LOWEST)
        top = tl.max(low, 1)
        log_sum = top + tl.log(tl.sum(tl.exp(low - top[:, None]), 1))
        picked = tl.sum(tl.where(t[None, :] == target[:, None], z, 0.0), 1)
        whole = tl.sum(z, 1)
        dz = _slopes(z, t, target, asked, log_sum, SMOOTHING, V)
        if HAS_BIAS:
            tl.store(sums + 2 * D + t, tl.sum(dz, 0))
        tl.store(kept + D + t[None, :], dz.to(DT), mask=real)
        dn = tl.dot(dz.to(DT), weight)
    else:  # once for the sum of exponentials, once for the gradients
        top = tl.zeros([R], WIDE) + LOWEST
        total, picked, whole = tl.zeros([R], WIDE), tl.zeros([R], WIDE), tl.zeros([R], WIDE)
        for c in tl.range(0, PADDED, TILE, num_stages=STAGES):
            weight, z = _tile(WEIGHT, BIAS, n, c + t, d, V, D, HAS_BIAS, DT, WIDE)
            low = tl.where((c + t < V)[None, :], z, LOWEST)
            higher = tl.maximum(top, tl.max(low, 1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(low - higher[:, None]), 1)
            top = higher
            picked += tl.sum(tl.where((c + t)[None, :] == target[:, None], z, 0.0), 1)
            whole += tl.sum(z, 1)
        log_sum = top + tl.log(total)
        dn = tl.zeros([R, D], WIDE)
        for c in tl.range(0, PADDED, TILE, num_stages=STAGES):
            weight, z = _tile(WEIGHT, BIAS, n, c + t, d, V, D, HAS_BIAS, DT, WIDE)
            dz = _slopes(z, c + t, target, asked, log_sum, SMOOTHING, V)
            if HAS_BIAS:
                tl.store(sums + 2 * D + c + t, tl.sum(dz, 0))
            tl.store(kept + D + (c + t)[None, :], dz.to(DT), mask=real)
            dn += tl.dot(dz.to(DT), weight)
    loss = log_sum - picked * (1.0 - SMOOTHING) - whole * (SMOOTHING / V)
    # A target that is no output would be a wrong loss without a word; the step refuses one that is not a number.
    loss = tl.where((target >= 0) & (target < V), loss, float("nan"))
    tl.store(PARTS + 2 * tl.program_id(0), tl.sum(tl.where(asked, loss, 0.0).to(WIDE), 0))
    tl.store(PARTS + 2 * tl.program_id(0) + 1, tl.sum(tl.where(counted, 1.0, 0.0).to(WIDE), 0))
    tl.store(sums + d, tl.sum(dn * hat, 0))
    tl.store(sums + D + d, tl.sum(dn, 0))
    tl.store(_block(D_ROWS, row, d, D), _normalized_back(dn * gain, hat, rate, D), mask=real)


@triton.jit
def add_parts(PARTS, TOTAL, COUNT, MEAN, blocks, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of the parts of all blocks, in an order that does not change, and the mean loss of what counts."""
    k = tl.arange(0, BLOCK)
    losses, counts = tl.zeros([BLOCK], WIDE), tl.zeros([BLOCK], WIDE)
    for start in range(0, blocks, BLOCK):
        inside = start + k < blocks
        losses += tl.load(PARTS + 2 * (start + k), mask=inside, other=0.0)
        counts += tl.load(PARTS + 2 * (start + k) + 1, mask=inside, other=0.0)
    total, count = tl.sum(losses, 0), tl.sum(counts, 0)
    tl.store(TOTAL, total)
    tl.store(COUNT, count)
    tl.store(MEAN, total / tl.maximum(count, 1.0))
