"""What the attentions of the recurrent era share: a learned score, and the source's own rows as values.

Each carries the parameters of its paper and nothing else: no projection of values or results, no bias, no scale. Keys
are compared after a projection that depends on the source alone, so that a decoder which goes step by step over a
cached source never projects it again.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import scores
from regard.nn.attention import Attention, AttentionInputs
from regard.scores import Score


class AlignmentModel(nn.Module):
    """How heads of width `head_dim` are compared. This one compares them as they are, by q·k (dot)."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.key_dim = head_dim  # the width in which queries and keys meet

    def queries(self, heads: Tensor) -> Tensor:
        """What of the queries (b,h,q,head_dim) is compared, (b,h,q,key_dim)."""
        return heads

    def keys(self, heads: Tensor) -> Tensor:
        """What of the source (b,h,k,head_dim) is compared, (b,h,k,key_dim)."""
        return heads

    def score(self) -> Score:
        """The score of what `queries` and `keys` give."""
        return scores.dot()


class Alignment(Attention):
    """Queries are compared with the rows of a source, and what they get is the weighted mean of those rows.

    The base of a family; not a mechanism itself. A member sets `compare`.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("window",)
    home: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        self.compare = AlignmentModel(self.num_heads, self.head_dim)
        # The papers compare states of equal width. Where they are not, one map makes them so.
        self.source_map = (
            None if self.source_dim == self.dim else nn.Linear(self.source_dim, self.dim, bias=False)
        )

    def project_query(self, query: Tensor, position: int) -> Tensor:
        return self.compare.queries(self.split(query))

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        heads = self.split(source if self.source_map is None else self.source_map(source))
        return self.compare.keys(heads), heads

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        return {"score": self.compare.score(), "mask": inputs.mask}

    def cache_shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.compare.key_dim, self.head_dim


def head_weights(*shape: int) -> nn.Parameter:
    """A matrix (h, outputs, inputs), or vector (h, inputs), for each head, as Glorot and Bengio begin with it."""
    inputs, outputs = shape[-1], shape[1] if len(shape) == 3 else 1
    bound = math.sqrt(6 / (inputs + outputs))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
