"""Scores that reduce to a dot product: dot, scaled dot, soft-capped, general, cosine."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.scores.base import Score, check_shape, transform_rows
from regard.values.grid import Grid, broadcasts, fits


class DotScore(Score):
    """q·k."""

    name: ClassVar[str] = "dot"
    is_dot: ClassVar[bool] = True
    transforms: ClassVar[bool] = False

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        return dot_products(query * scale, key)

    strip = pairs

    def backward(
        self, query: Tensor, key: Tensor, grid: Grid, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        folded = fold(grad, key.shape[1])
        grad_query = torch.matmul(folded, key).view_as(query).mul_(scale)
        return grad_query, torch.matmul(folded.transpose(-1, -2), fold(query * scale, key.shape[1])), []


class ScaledDotScore(DotScore):
    """q·k / √d."""

    name: ClassVar[str] = "scaled_dot"

    def factor(self, scale: float | None, dim: int) -> float:
        return 1 / math.sqrt(dim) if scale is None else float(scale)

    def reduce(self, query: Tensor, key: Tensor, guarded: bool) -> tuple[Score, Tensor, Tensor]:
        return _DOT, query, key


_DOT = DotScore()  # shared: building a value takes a few microseconds


class SoftcapScore(Score):
    """cap·tanh(q·k·scale / cap): a scaled dot product bounded by ±cap. Gemma Team 2024."""

    name: ClassVar[str] = "softcap"
    transforms: ClassVar[bool] = False

    cap: float

    def factor(self, scale: float | None, dim: int) -> float:
        return 1 / math.sqrt(dim) if scale is None else float(scale)

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        return torch.tanh(dot_products(query * (scale / self.cap), key)) * self.cap

    def backward(
        self, query: Tensor, key: Tensor, grid: Grid, scale: float, grad: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        tanh = torch.tanh(dot_products(query * (scale / self.cap), key))
        return DotScore().backward(query, key, grid, scale, grad * (1 - tanh**2))


class GeneralScore(Score):
    """qᵀ W k. Luong et al. 2015."""

    name: ClassVar[str] = "general"
    is_dot: ClassVar[bool] = True

    weight: Tensor

    def check(self, heads: int, dim: int) -> None:
        check_shape("weight", self.weight, (dim, dim), heads, "d,d")

    def reduce(self, query: Tensor, key: Tensor, guarded: bool) -> tuple[Score, Tensor, Tensor]:
        weight = self.weight.to(query.dtype)
        return DotScore(), transform_rows(lambda rows: rows @ weight, query, guarded), key


class CosineScore(Score):
    """strength·cos(q, k); a vector of length zero has similarity 0 to everything."""

    name: ClassVar[str] = "cosine"
    is_dot: ClassVar[bool] = True

    strength: float | Tensor

    def check(self, heads: int, dim: int) -> None:
        if isinstance(self.strength, Tensor) and self.strength.dim() == 1 and not fits(self.strength.shape[0], heads):
            raise BadValue(f"score: strength has {len(self.strength)} entries, expected one per query head, {heads}.")

    def reduce(self, query: Tensor, key: Tensor, guarded: bool) -> tuple[Score, Tensor, Tensor]:
        strength = self.strength
        if isinstance(strength, Tensor):
            strength = (strength.view(-1, 1, 1) if strength.dim() == 1 else strength).to(query.dtype)
            if not broadcasts(strength.shape, (*query.shape[:3], 1)):
                raise BadValue(
                    f"score: strength of shape {tuple(strength.shape)} does not broadcast to (b,h,q,1) = "
                    f"{(*query.shape[:3], 1)}."
                )
        query = transform_rows(lambda rows: _unit(rows) * strength, query, guarded)
        return DotScore(), query, transform_rows(_unit, key, guarded)


def _unit(rows: Tensor) -> Tensor:
    """Rows of length one; zero rows stay zero, with gradient zero. Dividing by the largest entry first keeps the
    squares of very large and very small rows in range."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    largest = wide.detach().abs().amax(-1, keepdim=True)
    wide = wide / largest.masked_fill(largest == 0, 1)
    squares = (wide**2).sum(-1, keepdim=True)
    empty = squares.detach() == 0
    return (wide * squares.masked_fill(empty, 1).rsqrt().masked_fill(empty, 0)).to(rows.dtype)


def fold(rows: Tensor, groups: int) -> Tensor:
    """(b,h,r,x) as (b,g,(h/g)·r,x): the query heads that share a key head become rows of it."""
    batch, heads, count, width = rows.shape
    return rows if heads == groups else rows.reshape(batch, groups, heads // groups * count, width)


def dot_products(query: Tensor, key: Tensor) -> Tensor:
    """q·k of every pair, (b,h,q,k); the key's heads may be shared."""
    return torch.matmul(fold(query, key.shape[1]), key.transpose(-1, -2)).view(*query.shape[:3], key.shape[2])
