"""`dynamic-transformer`: layers that update a memory while they read a sequence."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regard.models.decoder import Decoder
from regard.models.ends import pooled
from regard.models.model import model
from regard.tasks.problem import Batch


@model("dynamic-transformer", serves=("classify", "language", "bits"))
class DynamicTransformer(Decoder):
    """`decoder` with `dynamic-memory` as its attention: a gated memory, rewritten segment by segment.

    It reads in one direction, so that it can also write; for `classify` problems it judges the mean of what it read.
    """

    attention_default: ClassVar[str] = "dynamic-memory(segment=4)"

    def forward(self, batch: Batch) -> Tensor:
        if self.problem.kind != "classify":
            return super().forward(batch)
        found: Tensor = self.exit(pooled(self.rows(batch), batch.keep))
        return found
