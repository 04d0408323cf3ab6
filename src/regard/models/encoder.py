"""`encoder`: reads a whole sequence in both directions. Pre-trained by filling blanks, then it classifies."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regard.models.ends import pooled
from regard.models.model import model
from regard.models.reader import Reader
from regard.tasks.problem import Batch


@model("encoder", serves=("classify", "masked"))
class Encoder(Reader):
    """A Transformer encoder. For `masked` problems it guesses hidden words, for `classify` ones the class of the mean.

    Paper: Devlin et al. 2019; the layers of Vaswani et al. 2017.
    All weights but the exit's have the same names in both uses, so that `--init-from` carries them over.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the positions"

    def forward(self, batch: Batch) -> Tensor:
        rows = self.rows(batch)
        found: Tensor = self.exit(pooled(rows, batch.keep) if self.problem.kind == "classify" else rows)
        return found
