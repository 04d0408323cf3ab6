"""Scores that also depend on the distance between query and key: Shaw and Transformer-XL."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.scores.base import Score, check_shape, per_head
from regard.scores.dot import dot_products
from regard.values.grid import Grid


class ShawScore(Score):
    """q·k + q·table[clip(pos_k − pos_q)]. Shaw et al. 2018."""

    name: ClassVar[str] = "shaw"
    transforms: ClassVar[bool] = False

    table: Tensor
    align: str = "bottom-right"
    offset: int | None = None

    def check(self, heads: int, dim: int) -> None:
        _check_table(self.table, heads, dim)

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        distance = grid.distance_from(self.align, self.offset)
        return (dot_products(query, key) + _by_distance(query, self.table, grid, distance)) * scale


class TransformerXLScore(Score):
    """(q + content_bias)·k + (q + position_bias)·table[clip(pos_k − pos_q)]. Dai et al. 2019."""

    name: ClassVar[str] = "transformer_xl"
    transforms: ClassVar[bool] = False

    content_bias: Tensor
    position_bias: Tensor
    table: Tensor
    align: str = "bottom-right"
    offset: int | None = None

    def check(self, heads: int, dim: int) -> None:
        check_shape("content_bias", self.content_bias, (dim,), heads, "d")
        check_shape("position_bias", self.position_bias, (dim,), heads, "d")
        _check_table(self.table, heads, dim)

    def pairs(self, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
        content = query + per_head(self.content_bias, grid, 1).to(query.dtype)[:, None]
        position = query + per_head(self.position_bias, grid, 1).to(query.dtype)[:, None]
        distance = grid.distance_from(self.align, self.offset)
        return (dot_products(content, key) + _by_distance(position, self.table, grid, distance)) * scale


def _by_distance(query: Tensor, table: Tensor, grid: Grid, distance: Tensor) -> Tensor:
    """q·table[clip(distance)]: the products with all entries of the table, then one look-up for each pair."""
    radius = table.shape[-2] // 2
    products = torch.matmul(query, per_head(table, grid, 2).to(query.dtype).mT)  # (b,h,r,2·radius+1)
    index = (distance.clamp(-radius, radius) + radius).expand(*query.shape[:3], -1)
    return products.gather(-1, index)


def _check_table(table: Tensor, heads: int, dim: int) -> None:
    if table.dim() < 2 or table.shape[-2] % 2 == 0:
        raise BadValue(
            f"score: table has shape {tuple(table.shape)}, expected (2r+1,d): an odd number of distances −r … r."
        )
    check_shape("table", table, (table.shape[-2], dim), heads, "2r+1,d")
