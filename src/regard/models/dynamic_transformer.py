"""`dynamic-transformer`: layers that update a memory while they read a sequence."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.models.decoder import Decoder
from regard.models.embedding import pooled
from regard.models.model import model
from regard.tasks.batch import Batch


@model("dynamic-transformer", gives=("pooled", "past"))
class DynamicTransformer(Decoder):
    """`decoder` with `dynamic-memory` as its attention: a gated memory, rewritten segment by segment.

    It reads in one direction, so that it can also write; an answer for the whole example is made from the mean row.
    """

    attention_default: ClassVar[str] = "dynamic-memory(segment=4)"

    def forward(self, batch: Batch) -> Any:
        rows = self.rows(batch)
        return self.head(pooled(rows, batch.keep) if self.problem.answer.needs == "pooled" else rows, batch)
