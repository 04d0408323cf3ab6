"""Biases: numbers added to the scores, after everything else. Every tensor in them receives gradient.

    >>> from regard import biases
    >>> biases.alibi(8)
    biases.alibi(8)

Biases add up: `biases.alibi(8) + biases.dense(tensor)`. Those that depend on the distance take `align` and `offset` as
masks do: query 0 stands at k − q (bottom-right), at 0 (top-left) or at the offset.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import anchor, finite_number, float_tensor, readable, whole_number
from regard.support.differentiate import vjp
from regard.values.grid import Grid, Sizes, broadcasts, fits
from regard.values.value import Value

__all__ = ["Bias", "alibi", "dense", "gaussian", "relative", "t5"]


class Bias(Value):
    """A number for each (batch, head, query, key), added to the scores."""

    namespace: ClassVar[str] = "biases"
    name: ClassVar[str] = "bias"

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        """The numbers to add, in `dtype`; they broadcast to the grid's (b, h, q, k)."""
        raise NotImplementedError(f"{type(self).__name__} does not define values(grid, dtype)")

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        """Add the gradient of each tensor, for a gradient (b,h,q,k) of the values, to the tensors in `into`."""
        if not into:
            return

        def again(*tensors: Tensor) -> Tensor:
            return self.with_tensors(tensors).values(grid, grad.dtype).expand_as(grad)

        for total, gradient in zip(into, vjp(again, self.tensors, grad), strict=True):
            total += gradient

    def check(self, sizes: Sizes) -> None:
        """Raise when this bias does not fit a request of these sizes."""

    def single_head(self) -> Bias:
        """The same bias for inputs without a head axis, where a dense (x,q,k) tensor means (b,q,k)."""
        return self

    def __add__(self, other: Bias) -> Bias:
        return SumBias(self, other) if isinstance(other, Bias) else NotImplemented


class SumBias(Bias):
    """Two biases, added. A sum of finite numbers is finite: it ends at the lowest number of the dtype."""

    name: ClassVar[str] = "sum"
    left: Bias
    right: Bias

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        left, right = self.left.values(grid, dtype), self.right.values(grid, dtype)
        total = left + right
        if readable(total) and not bool((total == -torch.inf).any()):
            return total
        below = (total == -torch.inf) & (left != -torch.inf) & (right != -torch.inf)
        lowest = torch.finfo(dtype).min + (left - left.detach()) + (right - right.detach())  # keeps the gradient
        return torch.where(below, lowest, total)

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        split = len(self.left.tensors)
        self.left.accumulate(grid, grad, into[:split])
        self.right.accumulate(grid, grad, into[split:])

    def check(self, sizes: Sizes) -> None:
        self.left.check(sizes)
        self.right.check(sizes)

    def single_head(self) -> Bias:
        return SumBias(self.left.single_head(), self.right.single_head())

    def __repr__(self) -> str:
        right = f"({self.right!r})" if isinstance(self.right, SumBias) else repr(self.right)
        return f"{self.left!r} + {right}"


class AlibiBias(Bias):
    """−slope·|distance|, with the slopes of the paper for any number of heads. Press et al. 2022."""

    name: ClassVar[str] = "alibi"
    num_heads: int
    align: str = "bottom-right"
    offset: int | None = None

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        slopes = torch.tensor(alibi_slopes(self.num_heads), device=grid.device, dtype=dtype)
        return -grid.pick(slopes.view(1, -1, 1, 1)) * grid.distance_from(self.align, self.offset).abs()

    def check(self, sizes: Sizes) -> None:
        if self.num_heads != sizes[1]:
            raise BadValue(f"bias: {self!r} is for {self.num_heads} heads, but the query has {sizes[1]}.")


class RelativeBias(Bias):
    """table[h, clip(pos_k − pos_q, −r, r) + r]."""

    name: ClassVar[str] = "relative"
    table: Tensor
    align: str = "bottom-right"
    offset: int | None = None

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        return _look_up(self.table.to(dtype), self._index(grid), grid)

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        _scatter(into[0], self._index(grid), grad, grid)

    def check(self, sizes: Sizes) -> None:
        shape = tuple(self.table.shape)
        if len(shape) != 2 or not fits(shape[0], sizes[1]) or shape[1] % 2 == 0:
            raise BadValue(f"bias: the table has shape {shape}, expected (h|1, 2r+1) with h = {sizes[1]}.")

    def _index(self, grid: Grid) -> Tensor:
        radius = self.table.shape[1] // 2
        return grid.distance_from(self.align, self.offset).clamp(-radius, radius) + radius


class T5Bias(Bias):
    """table[bucket(pos_k − pos_q), h], exact for small distances and logarithmic beyond. Raffel et al. 2020."""

    name: ClassVar[str] = "t5"
    table: Tensor
    bidirectional: bool = True
    max_distance: int = 128
    align: str = "bottom-right"
    offset: int | None = None

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        return _look_up(self.table.to(dtype).mT, self._index(grid), grid)

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        _scatter(into[0].mT, self._index(grid), grad, grid)

    def check(self, sizes: Sizes) -> None:
        if self.table.dim() != 2 or not fits(self.table.shape[1], sizes[1]):
            raise BadValue(f"bias: the table has shape {tuple(self.table.shape)}, expected (buckets, {sizes[1]}).")

    def _index(self, grid: Grid) -> Tensor:
        """The bucket of each distance: one each for small distances, then of growing width up to `max_distance`.

        All distances from `max_distance` on share the last bucket. If half of the buckets already reach that far, there
        is no logarithmic part; with one bucket for each side, no distance has its own.
        """
        distance, buckets = grid.distance_from(self.align, self.offset), self.table.shape[0]
        first = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            first = (distance > 0) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact, last = min(buckets // 2, self.max_distance), buckets - 1
        index = torch.where(distance < exact, distance, last)
        if 0 < exact < self.max_distance:
            growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
            far = (exact + (growth * (buckets - exact)).long()).clamp(max=last)
            index = torch.where((distance >= exact) & (distance < self.max_distance), far, index)
        return first + index


class GaussianBias(Bias):
    """−(j − center)² / 2σ² around a centre for each query. Luong et al. 2015, equation 10."""

    name: ClassVar[str] = "gaussian"
    center: Tensor
    sigma: float

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        center = grid.pick(self.center[..., None]).to(dtype)
        # A hidden query may have a non-finite centre; its gradient must still be zero.
        nonfinite = ~center.detach().isfinite()
        away = grid.column - center.masked_fill(nonfinite, 0)
        # However far the centre is, the bias is finite and leaves no row empty.
        fall = (away**2 * (-0.5 / self.sigma**2)).clamp(min=torch.finfo(dtype).min)
        return fall.masked_fill(nonfinite, torch.nan)

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        center = grid.pick(self.center[..., None]).to(grad.dtype)
        away = grid.column - center
        clamped = away**2 * (0.5 / self.sigma**2) > torch.finfo(grad.dtype).max
        pull = (grad * away.masked_fill(clamped, 0)).sum(-1, keepdim=True) / self.sigma**2
        grid.add(into[0][..., None], pull.masked_fill(~center.isfinite(), 0))

    def check(self, sizes: Sizes) -> None:
        shape = tuple(self.center.shape)
        if len(shape) != 3 or not broadcasts(shape, sizes[:3]):
            raise BadValue(f"bias: the center has shape {shape}, expected (b,h,q) = {tuple(sizes[:3])}.")

    def single_head(self) -> Bias:
        return GaussianBias(self.center[:, None], self.sigma) if self.center.dim() == 2 else self


class DenseBias(Bias):
    """A float tensor, right-aligned to (b, h, q, k)."""

    name: ClassVar[str] = "dense"
    tensor: Tensor

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        return grid.pick(self._four(self.tensor)).to(dtype)

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        grid.add(self._four(into[0]), grad)

    def check(self, sizes: Sizes) -> None:
        if not broadcasts(self.tensor.shape, sizes):
            raise BadValue(
                f"bias: a tensor of shape {tuple(self.tensor.shape)} does not broadcast to (b,h,q,k) = {tuple(sizes)}."
            )

    def single_head(self) -> Bias:
        return DenseBias(self.tensor[:, None]) if self.tensor.dim() == 3 else self

    @staticmethod
    def _four(tensor: Tensor) -> Tensor:
        return tensor[(None,) * (4 - tensor.dim())]


def alibi(num_heads: int, align: str = "bottom-right", offset: int | None = None) -> Bias:
    """−slope·|i − j|, slopes of the paper for any head count."""
    return AlibiBias(whole_number("num_heads", num_heads, least=1), *anchor(align, offset))


def relative(table: Tensor, align: str = "bottom-right", offset: int | None = None) -> Bias:
    """A learned number for each distance −r … r and head, table (h|1, 2r+1)."""
    return RelativeBias(float_tensor("table", table), *anchor(align, offset))


def t5(
    table: Tensor,
    bidirectional: bool = True,
    max_distance: int = 128,
    align: str = "bottom-right",
    offset: int | None = None,
) -> Bias:
    """A learned number for each bucket of distances and head, table (buckets, h), buckets as in Hugging Face."""
    float_tensor("table", table)
    least = 2 if bidirectional else 1
    if table.dim() == 2 and table.shape[0] < least:
        sides = ", one for each side of the query" if bidirectional else ""
        raise BadValue(
            f"table: expected (buckets, h) with at least {least} bucket{'s' if least > 1 else ''}{sides}, got shape "
            f"{tuple(table.shape)}."
        )
    distance = whole_number("max_distance", max_distance, least=1)
    return T5Bias(table, bool(bidirectional), distance, *anchor(align, offset))


def gaussian(center: Tensor, sigma: float) -> Bias:
    """−(j − center)² / 2σ², center (b,h,q) in key positions; the centre receives gradient."""
    return GaussianBias(float_tensor("center", center), finite_number("sigma", sigma, above=0.0))


def dense(tensor: Tensor) -> Bias:
    """A float tensor, right-aligned to (b,h,q,k)."""
    return DenseBias(float_tensor("tensor", tensor))


def alibi_slopes(num_heads: int) -> list[float]:
    """A geometric series for a power of two; otherwise the next lower one's, then every other slope of the next."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    if power < num_heads:
        finer = [2.0 ** (-8 * (head + 1) / (2 * power)) for head in range(2 * power)]
        slopes += finer[0::2][: num_heads - power]
    return slopes


def _look_up(table: Tensor, index: Tensor, grid: Grid) -> Tensor:
    """table[h|1, index] as (h|1, q, k)."""
    return table[grid.head if table.shape[0] > 1 else torch.zeros_like(grid.head[:1]), index]


def _scatter(table: Tensor, index: Tensor, grad: Tensor, grid: Grid) -> None:
    """Add grad (b,h,q,k) to table[h|1, index]."""
    flat = grad.sum(0, dtype=table.dtype).flatten(1)
    rows = table.new_zeros(flat.shape[0], table.shape[1]).scatter_add_(1, index.reshape(1, -1).expand_as(flat), flat)
    if table.shape[0] > 1:
        table.index_add_(0, grid.head.view(-1), rows)
    else:
        table += rows.sum(0, keepdim=True)
