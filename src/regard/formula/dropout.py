"""Dropout without a stored mask: a hash of (seed, batch, head, query, key) decides whether a weight is kept.

The backward pass, the second derivative and every strip recompute the same bits from the seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.values.grid import Grid

_LOW = 0xFFFFFFFF  # for arithmetic modulo 2³² in int64: overflow of a product leaves the low 32 bits right


def draw_seed(device: torch.device) -> Tensor:
    """A fresh seed from torch's default generator: the same `manual_seed` gives the same dropout."""
    return torch.randint(0, 1 << 62, (1,), device=device, dtype=torch.int64)


def bits(grid: Grid, seed: Tensor) -> Tensor:
    """32 random bits for each pair, as int64 (b, h, q, k): a hash of the seed and the four indices."""
    state = _mix(_mix(seed & _LOW) ^ (seed >> 32))
    for index, factor in ((grid.batch, 0x9E3779B1), (grid.head, 0x85EBCA6B), (grid.row, 0xC2B2AE35)):
        state = _mix(state ^ (index * factor & _LOW))
    return _mix(state ^ (grid.column * 0x9E3779B1 & _LOW))


def kept(grid: Grid, seed: Tensor, probability: float) -> Tensor:
    """True where a weight is kept, bool (b, h, q, k)."""
    return bits(grid, seed) >= round(probability * (1 << 32))


def drop(weights: Tensor, grid: Grid, seed: Tensor | None, probability: float) -> Tensor:
    """`weights` with about the fraction `probability` set to zero and the rest scaled up to keep the mean."""
    if seed is None:
        return weights
    if probability >= 1:
        return torch.zeros_like(weights)
    return (weights * (1 / (1 - probability))).masked_fill(~kept(grid, seed, probability), 0)


def kept_factors(
    rows: Tensor, columns: Tensor, heads: int, seed: Tensor | None, probability: float, dtype: torch.dtype
) -> Tensor | None:
    """What weights of single pairs (rows[e], columns[e]) are multiplied by, (e,h): 0, or 1 / (1 − probability)."""
    if seed is None:
        return None
    if probability >= 1:
        return torch.zeros(len(rows), heads, dtype=dtype, device=rows.device)
    size = len(rows)
    none = slice(0, 0)
    pairs = Grid(
        (1, heads, size, size),
        batch=torch.zeros(1, dtype=torch.int64, device=rows.device),
        head=torch.arange(heads, device=rows.device),
        row=rows[:, None],
        column=columns[:, None],
        parts=(none, none, none, none),
    )
    return kept(pairs, seed, probability).to(dtype).div_(1 - probability)


def _mix(state: Tensor) -> Tensor:
    """Spread every bit over all 32 (two rounds of xor-shift and odd multiplication)."""
    state = state ^ (state >> 16)
    state = state * 0x7FEB352D & _LOW
    state = state ^ (state >> 15)
    state = state * 0x846CA68B & _LOW
    return state ^ (state >> 16)
