"""The embedding of words whose vectors are known: a linear map of them, which alone is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard_workbench.models.parts.embedding import embeds
from regard_workbench.tasks.text.word_vectors import WordVectors


class KnownVectors(nn.Module):
    """Fixed vectors, saved with the weights, and a map W v_w: words that training never saw keep their neighbours."""

    table: Tensor

    def __init__(self, spec: WordVectors, dim: int) -> None:
        super().__init__()
        vectors = torch.zeros(spec.count, spec.width) if spec.vectors is None else spec.vectors.clone()
        self.register_buffer("table", vectors)
        self.map = nn.Linear(spec.width, dim)

    def forward(self, ids: Tensor) -> Tensor:
        """(b,n) ids → (b,n,dim)."""
        vectors: Tensor = self.map(self.of(ids))
        return vectors

    def of(self, ids: Tensor) -> Tensor:
        """The vectors as they are, (b,n,width)."""
        return nn.functional.embedding(ids, self.table)


@embeds(WordVectors)
def _known_vectors(spec: WordVectors, dim: int) -> nn.Module:
    return KnownVectors(spec, dim)
