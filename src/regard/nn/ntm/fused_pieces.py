"""Functions of both kernels of a machine: non-linearities, softmax, and the product of a vector and a matrix.

All functions keep the dtype of their input. Non-linearities with one exponential have an absolute error of one
rounding, which sums of such numbers have anyway.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + e^−x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """tanh(x), since Triton's own exists on GPUs only."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def softplus(x):
    """log(1 + e^x): the logarithm of the rounded sum, with a correction for the rounding."""
    small = tl.exp(-tl.abs(x))
    whole = 1.0 + small
    rest = tl.where(whole == 1.0, small, tl.log(whole) * (small / tl.where(whole == 1.0, 1.0, whole - 1.0)))
    return tl.where(x > 0, x, 0.0) + rest


@triton.jit
def softmax(x):
    """Softmax along each row of a tile. A row must have an entry above −inf."""
    powers = tl.exp(x - tl.max(x, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def softmax_slope(result, grad):
    """Return the gradient of the input of a softmax along rows from that of its output."""
    return result * (grad - tl.sum(result * grad, 1)[:, None])


@triton.jit
def length_of(squares, TINY: tl.constexpr):
    """Return the square root; infinity in place of zero, so that the inverse is zero. NaN stays NaN."""
    return tl.sqrt(tl.where(squares <= TINY, float("inf"), squares))


@triton.jit
def times_matrix(vector, matrix, column, real, SIZE: tl.constexpr, STRIDE: tl.constexpr, INNER: tl.constexpr):
    """Return vector (SIZE) @ matrix (SIZE, ·) with row stride STRIDE, for the given columns where `real` is True.

    Columns are contiguous in memory, so that a warp loads part of a row at once; each thread sums its columns over many
    rows, and the threads are reduced once, at the end.
    """
    total = tl.zeros([INNER, column.shape[0]], matrix.dtype.element_ty)
    if SIZE <= 2 * INNER:  # short enough to unroll, so that all loads are in flight at once
        for start in tl.static_range(0, SIZE, INNER):
            total += _part(vector, matrix, start, column, real, SIZE, STRIDE, INNER)
    else:
        for start in range(0, SIZE, INNER):
            total += _part(vector, matrix, start, column, real, SIZE, STRIDE, INNER)
    return tl.sum(total, 0)


@triton.jit
def _part(vector, matrix, start, column, real, SIZE: tl.constexpr, STRIDE: tl.constexpr, INNER: tl.constexpr):
    row = start + tl.arange(0, INNER)
    factor = tl.load(vector + row, mask=row < SIZE, other=0.0)
    there = (row < SIZE)[:, None] & real[None, :]
    return factor[:, None] * tl.load(matrix + row[:, None] * STRIDE + column[None, :], mask=there, other=0.0)
