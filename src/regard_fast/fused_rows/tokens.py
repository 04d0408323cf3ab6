"""Rows of tokens as the kernels make them, and the gradient of their table: embedding, positions, dropout.

    x = drop(scale · table[id] + position)

The first kernel of a stack makes them. The gradient of a table's row is the sum over the places of its token. As a
product with zeros and ones, which the last kernel of the stack writes beside the gradient of the rows, it is one of the
gradients of weights and has a fixed order, where torch's kernels add in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.implementations.lowering import may_cache
from regard.nn.positions import Sinusoidal
from regard_fast.fused_rows import op, plain
from regard_fast.fused_rows.head_layout import PADDING
from regard_fast.fused_rows.layout import Job

SITE = 3  # of dropout; the layers have three


@dataclass(frozen=True)
class EmbeddedTokens:
    """Ids (b,n), the table of their rows, and what is done to them. `waves`: whether sinusoidal positions are added."""

    ids: Tensor
    table: Tensor
    scale: float
    rate: float
    waves: bool

    def like(self) -> Tensor:
        """A tensor of the shape and dtype of the rows, without values."""
        return self.table.new_empty((*self.ids.shape, self.table.shape[1]))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `rows_forward` makes the rows from: ids, table, positions."""
        table = self.table
        length, dim = self.ids.shape[1], table.shape[1]
        places = _kept_waves(length, dim, table.device, table.dtype) if self.waves else table
        return self.ids.contiguous(), table, places

    def stage(self) -> TableStage:
        """Where the factors of the table's gradient are."""
        return TableStage(self.table.shape[1], self.table.shape[0])

    def constants(self, seed: Tensor | None) -> dict[str, Any]:
        """Those that the kernels of rows take."""
        dropped = op._threshold(self.rate, seed)
        return {
            "TABLE": self.table.shape[0], "SCALE": self.scale, "SITE": SITE, "DROP_ROWS": dropped["drop"],
            "KEEP_ROWS": dropped["keep"],
        }

    def plain(self, seed: Tensor | None, table: Tensor) -> Tensor:
        """The same in plain torch, from this table."""
        rows = F.embedding(self.ids, table) * self.scale
        if self.waves:
            rows = rows + _waves(rows.shape[1], rows.shape[2], rows.device, rows.dtype)
        return plain.dropped(rows, seed, self.rate, SITE, 0)


@dataclass(frozen=True)
class TableStage:
    """`layout.RowPiece` of a table with `count` lines: its factors are the gradient of the rows, and ones for ids."""

    dim: int
    count: int
    vectors: int = 0

    @property
    def padded(self) -> int:
        """The number of lines in whole tiles."""
        return -(-self.count // PADDING) * PADDING

    @property
    def pitch(self) -> int:
        """Width of a row of factors."""
        return self.dim + self.padded

    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of the table with padded lines."""
        return [(self.padded, self.dim)]

    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> list[Job]:
        """A job for each tile that has lines of the table."""
        dim = self.dim
        return [
            (0, column + dim + i, column + j, total + i * dim + j, dim)
            for i in range(0, self.count, tall)
            for j in range(0, dim, width)
        ]


_WAVES: dict[Any, Tensor] = {}  # never dropped: a captured graph knows their addresses


def _kept_waves(length: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The waves of at least so many positions."""
    most = 1 << (length - 1).bit_length()
    waves = _WAVES.get((most, dim, device, dtype))
    if waves is None:
        waves = _waves(most, dim, device, dtype)
        if may_cache():
            _WAVES[most, dim, device, dtype] = waves
    return waves


def _waves(length: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return Sinusoidal(dim).rows(torch.arange(length, device=device)).to(dtype)
