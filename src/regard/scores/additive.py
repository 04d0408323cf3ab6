"""Additive scores: a one-hidden-layer network compares each query with each key.

A tanh costs a dozen operations. Where that is exact, it is computed once for each row instead of once for each pair:

- up to magnitude 1 by the addition formula, tanh(q+k) = (tanh q + tanh k) / (1 + tanh q · tanh k), which keeps tiny
  sums exact (its denominator cancels only for large ones of opposite sign);
- up to a sum of 40 as (x − 1) / (x + 1) with x = exp(2q)·exp(2k), with an absolute error of a rounding or two of 1;
- beyond, where the exponentials would overflow, pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.scores.base import Score, check_shape, per_head, spread_heads, transform_rows
from regard.support.differentiate import summation_dtype
from regard.values.grid import Grid

_SMALL, _LARGE = 1.0, 40.0  # exp(2·40) is still far from the largest float32
_CELLS = 1 << 18  # pairs × dim at once: about a megabyte of float32, which stays in the cache of one core


class AdditiveScore(Score):
    """weight·tanh(q + k) on queries and keys that are already projected. Bahdanau et al. 2014."""

    name: ClassVar[str] = "additive"
    transforms: ClassVar[bool] = False

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
        for method, entries in _methods(query, key):
            for rows, columns, tanh in method.parts(query, key):
                scores[entries, :, rows, columns] = _weigh(tanh, weight)[entries]
        return scores

    def backward(
        self, query: Tensor, key: Tensor, grid: Grid, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        heads, shared = query.shape[1], key.shape[1]
        wide = spread_heads(key, heads)
        grad_query, grad_key = torch.zeros_like(query), torch.zeros_like(wide)
        grad_weight = query.new_zeros(heads, query.shape[3], dtype=summation_dtype(query))
        unit = query.new_ones(())
        for method, entries in _methods(query, wide):
            for rows, columns, every in method.parts(query, wide):
                block_grad, tanh = grad[entries, :, rows, columns], every[entries]
                # One product over all pairs would sum them one after the other; summing by rows, as the formula does,
                # has a rounding error several times smaller.
                by_row = torch.matmul(block_grad[..., None, :], tanh)[..., 0, :]  # (b,h,r,d)
                grad_weight += by_row.sum((0, 2), dtype=grad_weight.dtype)
                slope = torch.addcmul(unit, tanh, tanh, value=-1, out=tanh).mul_(block_grad[..., None])
                grad_query[entries, :, rows] += slope.sum(-2)
                grad_key[entries, :, columns] += slope.sum(-3)
        weight = per_head(self.weight, grid, 1).to(query.dtype)[..., None, :] * scale
        grad_query, grad_key = grad_query * weight, grad_key * weight
        if shared != heads:
            grad_key = grad_key.unflatten(1, (shared, -1)).sum(2)
        return grad_query, grad_key, [self._fit(grad_weight * scale, grid)]

    def _fit(self, grad_weight: Tensor, grid: Grid) -> Tensor:
        """The gradient (h,d) of the heads of `grid` in the shape of the weight."""
        if self.weight.dim() == 1:
            return grad_weight.sum(0)
        full = torch.zeros_like(self.weight, dtype=grad_weight.dtype)
        return full.index_add_(0, grid.head.view(-1), grad_weight)


class ConcatScore(Score):
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
        return AdditiveScore(self.weight), query, transform_rows(lambda rows: rows @ for_key, key, guarded)


def _weigh(pairs: Tensor, weight: Tensor) -> Tensor:
    """(b,h,r,c,d) times weights (h|1,d), summed over d."""
    if weight.shape[0] == 1:
        return torch.matmul(pairs, weight[0])
    return torch.matmul(pairs, weight[:, None, :, None])[..., 0]


class _Method(NamedTuple):
    """A method to compute tanh(q + k) = join(prepare(q), prepare(k))."""

    prepare: Callable[[Tensor], Tensor]
    join: Callable[[Tensor, Tensor], Tensor]

    def parts(self, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """tanh(q + k) of every pair, (b,h,r,c,d), in parts that fit the cache, with their rows and columns."""
        left, right = self.prepare(query), self.prepare(key)
        breadth = max(1, query.shape[0] * query.shape[1] * query.shape[3])
        cells = _CELLS if query.device.type == "cpu" else _CELLS * 64
        columns = max(1, min(key.shape[2], cells // breadth, 256))
        rows = max(1, cells // (breadth * columns))
        for top in range(0, query.shape[2], rows):
            across = slice(top, min(top + rows, query.shape[2]))
            for start in range(0, key.shape[2], columns):
                down = slice(start, min(start + columns, key.shape[2]))
                yield across, down, self.join(left[:, :, across, None, :], right[:, :, None, down, :])


_BY_TANH = _Method(torch.clone, lambda left, right: (left + right).tanh_())
_BY_ADDITION = _Method(
    torch.tanh, lambda left, right: (left + right).div_(torch.addcmul(left.new_ones(()), left, right))
)
_BY_EXPONENTIALS = _Method(lambda rows: torch.exp(2 * rows), lambda left, right: _ratio(left * right))


def _ratio(power: Tensor) -> Tensor:
    """(x − 1) / (x + 1). (1 − 2 / (x + 1) saves a pass but doubles the rounding error near −1.)"""
    above = power - 1
    return above.div_(power.add_(1))


def _methods(query: Tensor, key: Tensor) -> list[tuple[_Method, slice | Tensor]]:
    """The methods to compute with, and the batch entries that each is for.

    Each entry's own magnitudes decide, and all entries are computed by each method that some of them need: so neither a
    NaN nor a large number in one entry changes a bit of another.
    """
    if (
        query.device.type != "cpu" or query.shape[2] == 1
    ):  # what is computed once for each key serves one query only; on a GPU, reading magnitudes would synchronize
        return [(_BY_TANH, slice(None))]
    largest = zip(_largest(query), _largest(key), strict=True)
    chosen = [_cheapest(of_query, of_key) for of_query, of_key in largest]
    methods = list(dict.fromkeys(chosen))
    if len(methods) == 1:
        return [(methods[0], slice(None))]
    return [
        (method, torch.tensor([n for n, chosen_method in enumerate(chosen) if chosen_method is method]))
        for method in methods
    ]


def _cheapest(of_query: float, of_key: float) -> _Method:
    """The cheapest exact method for rows of these magnitudes."""
    if max(of_query, of_key) <= _SMALL:
        return _BY_ADDITION
    return _BY_EXPONENTIALS if of_query + of_key <= _LARGE else _BY_TANH


def _largest(rows: Tensor) -> list[float]:
    """The largest magnitude of each batch entry; infinite where there is a NaN."""
    largest = rows.abs().flatten(1).amax(1).tolist() if rows.numel() else [0.0] * len(rows)
    return [magnitude if magnitude == magnitude else math.inf for magnitude in largest]
