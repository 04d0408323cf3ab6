"""The class of an example, said again after each glimpse at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class OneOfAfterEach(Answer):
    """The class of an example after each glimpse: logits (b,glimpses,classes); the target (b,) holds the class.

    The loss of an example is the mean of its cross-entropies after each glimpse, so that few glimpses must do as well
    as possible. The answer is that after the last one.
    """

    classes: int
    needs: ClassVar[str] = "glances"
    words: ClassVar[str] = "the class of an example after each glimpse"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return self.classes

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> Head:
        return GlancesHead(self.outputs, dim, tied)


class GlancesHead(Head):
    """Logits from a row for each glimpse."""

    def each_loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The mean of the cross-entropies of each example, (b,)."""
        assert batch.targets is not None
        glimpses = outputs.shape[1]
        losses = F.cross_entropy(
            widened(outputs).flatten(0, 1),
            batch.targets.repeat_interleave(glimpses),
            reduction="none",
            label_smoothing=smoothing,
        )
        return losses.view(-1, glimpses).mean(1)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """For each example its class, and the class after each glimpse."""
        return [{"class": classes[-1], "after_each": classes} for classes in outputs.argmax(-1).tolist()]
