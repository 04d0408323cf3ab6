"""The base class of scores.

A score works in two stages. `reduce` transforms queries and keys row by row (a projection, a normalisation), in
ordinary differentiable torch, at linear cost. What remains is a score of pairs: a dot product, a capped one, an
additive one or a relative one. Only `pairs` sees queries and keys together, one strip at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.differentiate import vjp
from regard.values.grid import Grid
from regard.values.value import Value


class Score(Value):
    """How well a query and a key match. Build one with the functions of `regard.scores`."""

    namespace: ClassVar[str] = "scores"
    name: ClassVar[str] = "score"
    is_dot: ClassVar[bool] = False  # `reduce` leaves a dot product, which fused kernels compute
    transforms: ClassVar[bool] = True  # `reduce` changes queries or keys

    def check(self, heads: int, dim: int) -> None:
        """Raise when the weights of this score do not fit `heads` query heads of width `dim`."""

    def factor(self, scale: float | None, dim: int) -> float:
        """The number that multiplies the score; None: the default of this score."""
        return 1.0 if scale is None else float(scale)

    def reduce(self, query: Tensor, key: Tensor, guarded: bool) -> tuple[Score, Tensor, Tensor]:
        """Transform queries (b,h,q,d) and keys (b,g,k,d); return the score of pairs that remains, and both.

        `guarded`: some rows may be hidden and contain NaN, which must not reach the gradient of a weight.
        """
        return self, query, key

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        """Scores (b,h,q,k) of the queries and keys that `grid` describes; keys may have fewer heads."""
        raise NotImplementedError(f"{type(self).__name__} does not define pairs(query, key, grid, scale)")

    def strip(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        """The same numbers as `pairs`, without a graph. Override it with a faster method."""
        return self.pairs(query, key, grid, scale)

    def backward(
        self, query: Tensor, key: Tensor, grid: Grid, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The gradient of `pairs` in the direction `grad`, for the query, the key and each tensor of the score."""

        def again(query: Tensor, key: Tensor, *tensors: Tensor) -> Tensor:
            return self.with_tensors(tensors).pairs(query, key, grid, scale)

        gradients = vjp(again, [query, key, *self.tensors], grad)
        return gradients[0], gradients[1], gradients[2:]


def transform_rows(transform: Callable[[Tensor], Tensor], rows: Tensor, guarded: bool) -> Tensor:
    """`transform(rows)`, in which non-finite rows become NaN without reaching the gradient of the weights.

    NaN keeps such a row visible where a query attends to it. The gradient of the weights is that of a zero row, so that
    a hidden row does not affect it.
    """
    if not guarded:
        return transform(rows)
    nonfinite = ~rows.detach().isfinite().all(-1, keepdim=True)
    return transform(rows.masked_fill(nonfinite, 0)).masked_fill(nonfinite, torch.nan)


def spread_heads(key: Tensor, heads: int) -> Tensor:
    """Keys (b,g,k,d) repeated so that each query head has its own, (b,h,k,d)."""
    return key if key.shape[1] == heads else key.repeat_interleave(heads // key.shape[1], 1)


def per_head(weight: Tensor, grid: Grid, rank: int) -> Tensor:
    """A weight of `rank` axes, or of one more for the query heads, as (h|1, …) for the heads of `grid`."""
    if weight.dim() == rank:
        return weight[None]
    return weight.index_select(0, grid.head.view(-1))


def check_shape(argument: str, weight: Tensor, shape: tuple[int, ...], heads: int, letters: str) -> None:
    """Raise unless `weight` has `shape`, or `shape` after one axis of `heads`."""
    if tuple(weight.shape) not in (shape, (heads, *shape)):
        raise BadValue(
            f"score: {argument} has shape {tuple(weight.shape)}, expected ({letters}) = {shape} or, one for each "
            f"query head, (h,{letters}) = {(heads, *shape)}."
        )
