"""What the two kernels of a machine share: curves, softmax, and a vector times a matrix.

Everything keeps the dtype it is given. A curve written with one exponential is good to an absolute error of one
rounding, which is what sums of such numbers have anyway.
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
    """The hyperbolic tangent; Triton's own exists on a GPU only."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def softplus(x):
    """log(1 + e^x): the logarithm of the rounded sum, times how much the rounding took away."""
    small = tl.exp(-tl.abs(x))
    whole = 1.0 + small
    rest = tl.where(whole == 1.0, small, tl.log(whole) * (small / tl.where(whole == 1.0, 1.0, whole - 1.0)))
    return tl.where(x > 0, x, 0.0) + rest


@triton.jit
def softmax(x):
    """Along each row of a tile. A row may not be −inf everywhere."""
    powers = tl.exp(x - tl.max(x, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def softmax_slope(result, grad):
    """From the gradient of a softmax along rows to that of what went in."""
    return result * (grad - tl.sum(result * grad, 1)[:, None])


@triton.jit
def length_of(squares, TINY: tl.constexpr):
    """The root; infinite for nothing, so that its inverse is zero. What is no number stays."""
    return tl.sqrt(tl.where(squares <= TINY, float("inf"), squares))


@triton.jit
def times_matrix(vector, matrix, column, real, SIZE: tl.constexpr, STRIDE: tl.constexpr, INNER: tl.constexpr):
    """vector (SIZE) @ matrix (SIZE, ·), rows STRIDE apart, for the columns that are named and `real`.

    Columns lie side by side in memory, so that a warp loads part of a row at once; each thread adds up its columns over
    many rows, and the threads meet once, at the end.
    """
    total = tl.zeros([INNER, column.shape[0]], matrix.dtype.element_ty)
    if SIZE <= 2 * INNER:  # few enough to be written out, so that all loads are under way at once
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
