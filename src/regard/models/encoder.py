"""`encoder`: a bidirectional Transformer encoder, for masked pre-training and classification."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.models.embedding import joined_keep, pooled
from regard.models.model import model
from regard.models.reader import Reader
from regard.tasks.batch import Batch


@model("encoder", gives=("pooled", "rows"), reads=None, several_streams=True)
class Encoder(Reader):
    """A Transformer encoder with a head for each position or for the mean over positions.

    Paper: Devlin et al. 2019; the layers of Vaswani et al. 2017.
    All weights but the head's have the same names in both uses, so that `--init-from` carries them over.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the positions"

    def forward(self, batch: Batch) -> Any:
        rows = self.rows(batch)
        if self.problem.answer.needs == "pooled":
            return self.head(pooled(rows, joined_keep(batch.streams.values())), batch)
        return self.head(rows[:, : batch.inputs.shape[1]], batch)
