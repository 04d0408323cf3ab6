"""Rows of tokens as the kernels make them, and the gradient of their table: embedding, positions, dropout.

    x = drop(scale · table[id] + position)

The gradient of a table's row is the sum over the places of its token. As a product with zeros and ones it has a fixed
order, where torch's kernels add in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.implementations.lowering import may_cache
from regard.implementations.triton import block_sizes
from regard.nn.fused_rows import op, plain
from regard.nn.fused_rows.head_layout import PADDING
from regard.nn.fused_rows.layout import Job
from regard.nn.fused_rows.short_attention import triton_dtype
from regard.nn.positions import Sinusoidal

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

    def shapes(self) -> list[Tensor]:
        """What `run` returns, without values."""
        rows = self.like()
        return [rows, torch.empty_like(rows, dtype=torch.uint8)] if self.rate else [rows]

    def run(self, seed: Tensor | None) -> list[Tensor]:
        """The rows (b,n,dim) and, with dropout, what it has kept of them."""
        from regard.nn.fused_rows.head_kernels import embed_rows

        made, ids = self.shapes(), self.ids.contiguous()
        found = made[0]
        dropped = op._threshold(self.rate, seed)
        rows, dim = ids.numel(), found.shape[2]
        launch = {} if block_sizes.INTERPRETED else {"num_warps": 4}
        places = _kept_waves(ids.shape[1], dim, found.device, found.dtype) if self.waves else found
        embed_rows[(-(-rows // op.TUNING.rows),)](
            ids, self.table, places, found if seed is None else seed, found, made[-1], rows, ids.shape[1],
            COUNT=self.table.shape[0], SCALE=self.scale, D=dim, WAVES=self.waves, SITE=SITE, DROP=dropped["drop"],
            KEEP=dropped["keep"], WIDE=triton_dtype(found.dtype), R=op.TUNING.rows, **launch,
        )  # fmt: skip
        return made

    def plain(self, seed: Tensor | None, table: Tensor) -> Tensor:
        """The same in plain torch, from this table."""
        found = F.embedding(self.ids, table) * self.scale
        if self.waves:
            found = found + _waves(found.shape[1], found.shape[2], found.device, found.dtype)
        return plain.dropped(found, seed, self.rate, SITE, 0)


@dataclass(frozen=True)
class TableStage:
    """`layout.RowPiece` of a table: it keeps nothing but the ids and the gradient of the rows."""

    dim: int
    count: int
    pitch: int = 0
    vectors: int = 0

    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of the table, its height in whole tiles."""
        return [(-(-self.count // PADDING) * PADDING, self.dim)]

    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> list[Job]:
        """A job for each tile; its columns are ids and columns of the gradient of the rows."""
        dim = self.dim
        return [
            (0, i, j, total + i * dim + j, dim)
            for i in range(0, self.count, tall)
            for j in range(0, dim, width)
        ]


_WAVES: dict[Any, Tensor] = {}  # never dropped: a captured graph knows their addresses


def _kept_waves(length: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The waves of at least so many positions."""
    most = 1 << (length - 1).bit_length()
    found = _WAVES.get((most, dim, device, dtype))
    if found is None:
        found = _waves(most, dim, device, dtype)
        if may_cache():
            _WAVES[most, dim, device, dtype] = found
    return found


def _waves(length: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return Sinusoidal(dim).rows(torch.arange(length, device=device)).to(dtype)
