"""What every model begins and ends with: inputs become rows, rows become answers. One place for all models."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn import positions as places
from regard.tasks.problem import Tokens, Vectors


class Entrance(nn.Module):
    """Ids or vectors as rows (b,n,dim), with their positions."""

    def __init__(
        self,
        inputs: Tokens | Vectors,
        dim: int,
        *,
        positions: str = "sinusoidal",
        max_length: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.rows: nn.Module
        if isinstance(inputs, Tokens):
            self.rows = nn.Embedding(inputs.count, dim)
            nn.init.normal_(self.rows.weight, std=dim**-0.5)
        else:
            self.rows = nn.Linear(inputs.width, dim)
        # Embeddings begin small so that they can also serve as the output's weights; sinusoids do not.
        self.scale = math.sqrt(dim) if isinstance(inputs, Tokens) else 1.0
        self.positions = places.build(positions, dim, max_length)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, offset: int = 0) -> Tensor:
        """(b,n) ids or (b,n,width) numbers → (b,n,dim); `offset`: where the first of them stands."""
        if isinstance(self.rows, nn.Linear):
            inputs = inputs.to(self.rows.weight.dtype)
        found: Tensor = self.dropout(self.positions(self.rows(inputs) * self.scale, offset))
        return found


class Exit(nn.Module):
    """Rows (b,n,dim) as logits (b,n,outputs). With `tied`, an embedding's own rows are the weights."""

    def __init__(self, dim: int, outputs: int, tied: Entrance | None = None) -> None:
        super().__init__()
        self.logits = nn.Linear(dim, outputs)
        nn.init.normal_(self.logits.weight, std=dim**-0.5)
        nn.init.zeros_(self.logits.bias)
        if tied is not None:
            assert isinstance(tied.rows, nn.Embedding) and tied.rows.num_embeddings == outputs
            self.logits.weight = tied.rows.weight

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.logits(rows)
        return found


def pooled(rows: Tensor, keep: Tensor | None) -> Tensor:
    """The mean of the real rows, (b,dim); zeros where there is none."""
    if keep is None:
        return rows.mean(1)
    kept = rows.masked_fill(~keep[..., None], 0)
    return kept.sum(1) / keep.sum(1, keepdim=True).clamp(min=1).to(rows.dtype)


def padding_mask(keep: Tensor | None) -> Mask | None:
    """The mask that hides what is not real."""
    return None if keep is None else PaddingMask(keep)


def shifted(targets: Tensor, start: int) -> Tensor:
    """What a decoder is given so that it writes `targets` (b,t): the start, then everything but the last."""
    return torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], 1)
