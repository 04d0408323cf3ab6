"""Independent bits at every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class Bits(Answer):
    """`width` bits at every position: logits (b,n,width), positive for 1; the target (b,n,width) holds 0 and 1."""

    width: int
    needs: ClassVar[str] = "past"
    scored: ClassVar[bool] = False
    words: ClassVar[str] = "independent bits at every step"
    terms: ClassVar[str] = "vectors"
    units: ClassVar[str] = "sequences"

    @property
    def outputs(self) -> int:
        """One logit for each bit."""
        return self.width

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> BitsHead:
        """A linear map to the bits."""
        return BitsHead(self.width, dim)


class BitsHead(Head):
    """Each bit is its own yes or no."""

    def each_loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The binary cross-entropy of the bits of each vector, (b,n)."""
        assert batch.targets is not None
        wide = widened(outputs)
        return F.binary_cross_entropy_with_logits(wide, batch.targets.to(wide), reduction="none").sum(-1)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The bits."""
        bits: list[Any] = (outputs > 0).long().tolist()
        return bits
