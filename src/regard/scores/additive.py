"""Additive scores: a one-hidden-layer network compares each query with each key.

With A = exp(2q) − 1 and B = exp(2k) − 1, exp(2(q+k)) − 1 = A + (1 + A)·B =: s, and tanh(q+k) = s / (s + 2). So the
exponentials are computed once for each row, and a pair costs a product, a sum and a division where a tanh costs a dozen
operations. Written with `expm1` it stays exact for tiny sums, where 1 − 2 / (exp(2(q+k)) + 1) would cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from regard.grid import Grid
from regard.scores.base import Score, check_shape, per_head, spread_heads, transform_rows

_SAFE = 20.0  # exp(2·20) squared is still far from the largest float32
_CELLS = 1 << 18  # pairs × dim in flight: about a megabyte of float32, which stays in the cache of one core


class Additive(Score):
    """weight·tanh(q + k). Bahdanau et al. 2014, on queries and keys that are projected already."""

    name: ClassVar[str] = "additive"

    weight: Tensor

    def check(self, heads: int, dim: int) -> None:
        check_shape("weight", self.weight, (dim,), heads, "d")

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        key = spread_heads(key, query.shape[1])
        weight = per_head(self.weight, grid, 1).to(query.dtype) * scale  # (h|1,d)
        return _weigh(torch.tanh(query[..., :, None, :] + key[..., None, :, :]), weight)

    def strip(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        key = spread_heads(key, query.shape[1])
        weight = per_head(self.weight, grid, 1).to(query.dtype) * scale
        scores = query.new_empty(*query.shape[:3], key.shape[2])
        for rows, columns, tanh in _tanh_of_pairs(query, key):
            scores[:, :, rows, columns] = _weigh(tanh, weight)
        return scores

    def backward(
        self, query: Tensor, key: Tensor, grid: Grid, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        heads, shared = query.shape[1], key.shape[1]
        wide = spread_heads(key, heads)
        grad_query, grad_key = torch.zeros_like(query), torch.zeros_like(wide)
        grad_weight = query.new_zeros(heads, query.shape[3])
        for rows, columns, tanh in _tanh_of_pairs(query, wide):
            part = grad[:, :, rows, columns]
            grad_weight += torch.matmul(part.flatten(2)[..., None, :], tanh.flatten(2, 3))[..., 0, :].sum(0)
            slope = torch.addcmul(_one(query), tanh, tanh, value=-1).mul_(part[..., None])  # grad·(1 − tanh²)
            grad_query[:, :, rows] += slope.sum(-2)
            grad_key[:, :, columns] += slope.sum(-3)
        weight = per_head(self.weight, grid, 1).to(query.dtype)[..., None, :] * scale
        grad_query, grad_key = grad_query * weight, grad_key * weight
        if shared != heads:
            grad_key = grad_key.unflatten(1, (shared, -1)).sum(2)
        return grad_query, grad_key, [self._fit(grad_weight * scale, grid)]

    def _fit(self, grad_weight: Tensor, grid: Grid) -> Tensor:
        """The gradient (h,d) of the heads at hand in the shape of the weight."""
        if self.weight.dim() == 1:
            return grad_weight.sum(0)
        whole = torch.zeros_like(self.weight, dtype=grad_weight.dtype)
        return whole.index_add_(0, grid.head.view(-1), grad_weight)


class Concat(Score):
    """weight·tanh(W_q q + W_k k). Luong et al. 2015."""

    name: ClassVar[str] = "concat"

    weight_query: Tensor
    weight_key: Tensor
    weight: Tensor

    def check(self, heads: int, dim: int) -> None:
        width = self.weight.shape[-1]
        check_shape("weight", self.weight, (width,), heads, "a")
        check_shape("weight_query", self.weight_query, (width, dim), heads, "a,d")
        check_shape("weight_key", self.weight_key, (width, dim), heads, "a,d")

    def reduce(self, query: Tensor, key: Tensor, guarded: bool) -> tuple[Score, Tensor, Tensor]:
        if self.weight_key.dim() == 3:  # one projection for each query head, so keys are no longer shared
            key = spread_heads(key, query.shape[1])
        for_query, for_key = self.weight_query.to(query.dtype).mT, self.weight_key.to(key.dtype).mT
        query = transform_rows(lambda rows: rows @ for_query, query, guarded)
        return Additive(self.weight), query, transform_rows(lambda rows: rows @ for_key, key, guarded)


def _weigh(pairs: Tensor, weight: Tensor) -> Tensor:
    """(b,h,r,c,d) times weights (h|1,d), summed over d."""
    if weight.shape[0] == 1:
        return torch.matmul(pairs, weight[0])
    return torch.matmul(pairs, weight[:, None, :, None])[..., 0]


def _tanh_of_pairs(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """tanh(q + k) of every pair, (b,h,r,c,d), a cache-sized piece at a time."""
    # Looking at the magnitudes is free on a CPU; a GPU would have to wait for them.
    on_cpu = query.device.type == "cpu"
    split = on_cpu and _largest(query) < _SAFE and _largest(key) < _SAFE
    grown = torch.exp(2 * query) if split else query
    left, right = (torch.expm1(2 * query), torch.expm1(2 * key)) if split else (query, key)
    breadth = max(1, query.shape[0] * query.shape[1] * query.shape[3])
    cells = _CELLS if on_cpu else _CELLS * 64
    columns = max(1, min(key.shape[2], cells // breadth, 256))
    rows = max(1, cells // (breadth * columns))
    for top in range(0, query.shape[2], rows):
        across = slice(top, min(top + rows, query.shape[2]))
        for start in range(0, key.shape[2], columns):
            down = slice(start, min(start + columns, key.shape[2]))
            row, column = left[:, :, across, None, :], right[:, :, None, down, :]
            if split:
                tanh = torch.addcmul(row, grown[:, :, across, None, :], column)
                tanh.div_(tanh + 2)
            else:
                tanh = (row + column).tanh_()
            yield across, down, tanh


def _one(like: Tensor) -> Tensor:
    return like.new_ones(())


def _largest(rows: Tensor) -> float:
    """The largest magnitude; NaN where there is one, which compares as too large."""
    return float(rows.abs().amax()) if rows.numel() else 0.0
