"""What every score can do.

A score works in two stages. `reduce` transforms queries and keys row by row (a projection, a normalisation), in
ordinary differentiable torch, at linear cost. What remains is a score of pairs: a dot product, a capped one, an
additive one or a relative one. Only `pairs` ever meets a query and a key together, one strip at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from regard.core.differentiate import vjp
from regard.core.grid import Grid
from regard.core.value import Value
from regard.errors import BadValue


class Score(Value):
    """How well a query and a key match. Build one with the functions of `regard.scores`."""

    namespace: ClassVar[str] = "scores"
    name: ClassVar[str] = "score"
    is_dot: ClassVar[bool] = False  # `reduce` leaves a dot product, which fused kernels know
    transforms: ClassVar[bool] = True  # `reduce` changes queries or keys

    def check(self, heads: int, dim: int) -> None:
        """Raise when the weights of this score do not fit `heads` query heads of width `dim`."""

    def factor(self, scale: float | None, dim: int) -> float:
        """What the score is multiplied by; None stands for the default of this score."""
        return 1.0 if scale is None else float(scale)

    def reduce(self, query: Tensor, key: Tensor, guarded: bool) -> tuple[Score, Tensor, Tensor]:
        """The pairwise score that is left once queries (b,h,q,d) and keys (b,g,k,d) have been transformed.

        `guarded`: some rows may be hidden and hold NaN, which must not reach the gradient of a weight.
        """
        return self, query, key

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        """Scores (b,h,q,k) of the queries and keys that `grid` describes; keys may have fewer heads."""
        raise NotImplementedError(f"{type(self).__name__} does not define pairs(query, key, grid, scale)")

    def strip(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        """The same numbers as `pairs`, without a graph: the place for a faster way to compute them."""
        return self.pairs(query, key, grid, scale)

    def backward(
        self, query: Tensor, key: Tensor, grid: Grid, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The gradient of `pairs` in the direction `grad`, for the query, the key and each tensor of the score."""

        def again(query: Tensor, key: Tensor, *tensors: Tensor) -> Tensor:
            return self.with_tensors(tensors).pairs(query, key, grid, scale)

        found = vjp(again, [query, key, *self.tensors], grad)
        return found[0], found[1], found[2:]


def transform_rows(transform: Callable[[Tensor], Tensor], rows: Tensor, guarded: bool) -> Tensor:
    """`transform(rows)`, in which a row that is not finite stays so but never meets the weights.

    Its result is NaN (so that it stays visible where somebody attends to it), while the gradient of the weights
    is that of a zero row (so that it stays out of them where nobody does).
    """
    if not guarded:
        return transform(rows)
    spoilt = ~rows.detach().isfinite().all(-1, keepdim=True)
    return transform(rows.masked_fill(spoilt, 0)).masked_fill(spoilt, torch.nan)


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
