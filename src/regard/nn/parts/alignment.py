"""The base class of the attentions of recurrent models: a learned score, and the rows of the source as values.

Each has the parameters of its paper only: no projection of values or outputs, no bias, no scale. Keys are projected
independently of the queries, so that a decoder that attends step by step projects a source once.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import scores
from regard.nn.parts.attention import Attention, AttentionInputs
from regard.scores import Score


class AlignmentModel(nn.Module):
    """Scores queries against source rows, both in heads of width `head_dim`. This base class computes q·k (dot)."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.key_dim = head_dim  # the width of projected queries and keys

    def queries(self, heads: Tensor) -> Tensor:
        """Project queries (b,h,q,head_dim) to (b,h,q,key_dim)."""
        return heads

    def keys(self, heads: Tensor) -> Tensor:
        """Project source rows (b,h,k,head_dim) to keys (b,h,k,key_dim)."""
        return heads

    def score(self) -> Score:
        """Return the score of projected queries and keys."""
        return scores.dot()


class Alignment(Attention):
    """Queries are scored against the rows of a source and receive the weighted mean of those rows.

    A base class, not a mechanism. A subclass sets `compare`, its alignment model.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("window",)

    def __init__(
        self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        self.compare = AlignmentModel(self.num_heads, self.head_dim)
        # The papers assume queries and source rows of one width; otherwise a linear map gives the source that width.
        self.source_map = None if self.source_dim == self.dim else nn.Linear(self.source_dim, self.dim, bias=False)

    def project_query(self, query: Tensor, position: int) -> Tensor:
        return self.compare.queries(self.split(query))

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        heads = self.split(source if self.source_map is None else self.source_map(source))
        return self.compare.keys(heads), heads

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        return {"score": self.compare.score(), "mask": inputs.mask}

    def cache_shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.compare.key_dim, self.head_dim


def map_heads(heads: Tensor, weight: Tensor) -> Tensor:
    """Rows (b,h,l,d) times the matrix (h,e,d) of their head: (b,h,l,e).

    For a single row, the batch takes the place of the length: torch would multiply each batch entry by a copy of the
    matrix, and add up as many gradients of it.
    """
    if heads.shape[2] != 1:
        return heads @ weight.mT
    return (heads[:, :, 0].transpose(0, 1) @ weight.mT).transpose(0, 1)[:, :, None]


def head_weights(*shape: int) -> nn.Parameter:
    """A matrix (h, outputs, inputs) or vector (h, inputs) for each head, with Glorot and Bengio's initial weights."""
    inputs, outputs = shape[-1], shape[1] if len(shape) == 3 else 1
    bound = math.sqrt(6 / (inputs + outputs))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
