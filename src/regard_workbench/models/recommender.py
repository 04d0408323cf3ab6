"""`recommender`: causal attention over the history of a user."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from regard_workbench.models.decoder import Decoder
from regard_workbench.models.parts.embedding import padding_mask
from regard_workbench.models.parts.model import model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens


@model("recommender", gives=("past",), reads=(Tokens,))
class Recommender(Decoder):
    """A small causal Transformer whose scores are products with the items' embeddings.

    Positions are counted back from the newest item, so that each history ends at the same one. Where it writes a text
    token by token, whose end is not known, they are counted from the beginning.

    Paper: Kang and McAuley 2018 (SASRec); the loss over all items instead of one negative: Klenitskiy and Vasilev 2023.
    """

    takes_attention: ClassVar[str] = "each layer's causal attention among the items of a history"

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        layers: int = 2,
        num_heads: int = 1,
        positions: str = "learned",
        dropout: float = 0.2,
        hidden: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            problem,
            dim=dim,
            layers=layers,
            num_heads=num_heads,
            positions=positions,
            dropout=dropout,
            hidden=hidden or dim,
            **options,
        )
        self.backwards = not problem.answer.writes and positions != "none"

    def rows(self, batch: Batch) -> Tensor:
        """The output rows of the layers, (b,n,dim)."""
        if not self.backwards:
            return super().rows(batch)
        count, embedding = batch.inputs.shape[1], self.embedding
        steps = torch.arange(count, device=batch.device)
        lengths = torch.full_like(steps[:1], count) if batch.keep is None else batch.keep.sum(1)
        since = (lengths[:, None] - 1 - steps).clamp(min=0)  # items from there to the newest; padding is never read
        rows = embedding.rows(batch.inputs) * embedding.scale
        rows = rows + embedding.positions.rows(since).to(rows.dtype)
        outputs: Tensor = self.stack(embedding.dropout(rows), mask=padding_mask(batch.keep))
        return outputs
