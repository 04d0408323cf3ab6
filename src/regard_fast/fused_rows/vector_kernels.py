"""The beginning of a model that reads vectors: a linear map of few numbers, positions, dropout, and its gradients."""

from __future__ import annotations

import triton
import triton.language as tl

from regard_fast.fused_rows.kernels import _block, _dropped


@triton.jit
def embed_vectors(
    DATA, WEIGHT, BIAS, PLACES, SEED, X, rows, length, K: tl.constexpr, D: tl.constexpr, WAVES: tl.constexpr,
    SITE: tl.constexpr, DROP: tl.constexpr, KEEP: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Rows x = drop(W data + b + position) of a block; DATA is (rows,K), and PADDED what a matrix unit takes of it."""
    row, d, k = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D), tl.arange(0, PADDED)
    real, known = (row < rows)[:, None], (k < K)[None, :]
    data = tl.load(_block(DATA, row, k, K), mask=real & known, other=0.0).to(DT)
    weight = tl.load(_block(WEIGHT, d, k, K), mask=known, other=0.0).to(DT)
    x = tl.dot(data, tl.trans(weight)) + tl.load(BIAS + d).to(WIDE)[None, :]
    if WAVES:
        x += tl.load(_block(PLACES, row % length, d, D), mask=real, other=0.0)
    tl.store(_block(X, row, d, D), _dropped(x, SEED, 0, SITE, row, d, DROP, KEEP), mask=real)


@triton.jit
def vector_gradients(
    D_X, DATA, SEED, D_WEIGHT, D_BIAS, rows, K: tl.constexpr, D: tl.constexpr, SITE: tl.constexpr, DROP: tl.constexpr,
    KEEP: tl.constexpr, DT: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    """The gradients of some lines of the weight and of their biases, over all rows in order."""
    i, k, at = tl.program_id(0) * TALL + tl.arange(0, TALL), tl.arange(0, PADDED), tl.arange(0, BLOCK)
    known = (k < K)[None, :]
    found, total = tl.zeros([TALL, PADDED], WIDE), tl.zeros([TALL], WIDE)
    for start in tl.range(0, rows, BLOCK, num_stages=STAGES):
        row = start + at
        real = (row < rows)[:, None]
        pull = tl.load(_block(D_X, row, i, D), mask=real, other=0.0).to(WIDE)
        pull = _dropped(pull, SEED, 0, SITE, row, i, DROP, KEEP)
        data = tl.load(_block(DATA, row, k, K), mask=real & known, other=0.0).to(DT)
        total += tl.sum(pull, 0)
        found += tl.dot(tl.trans(pull.to(DT)), data)
    tl.store(_block(D_WEIGHT, i, k, K), found, mask=known)
    tl.store(D_BIAS + i, total)
