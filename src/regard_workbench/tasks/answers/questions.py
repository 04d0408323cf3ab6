"""Several questions about one example, each answered by one of its own classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class Questions(Answer):
    """A class for each of several questions: logits (b,classes) and targets (b,) by the name of the question."""

    names: tuple[str, ...]
    counts: tuple[int, ...]  # the classes of each
    needs: ClassVar[str] = "pooled"
    words: ClassVar[str] = "a class for each of several questions"

    @property
    def outputs(self) -> int:
        """One logit for each class of each question."""
        return sum(self.counts)

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> QuestionsHead:
        """One linear map for all."""
        return QuestionsHead(self.names, self.counts, dim)


class QuestionsHead(Head):
    """All questions are trained together: the loss is the sum of their cross-entropies."""

    def __init__(self, names: tuple[str, ...], counts: tuple[int, ...], dim: int | None) -> None:
        super().__init__(sum(counts), dim)
        self.names, self.counts = names, list(counts)

    def forward(self, rows: Tensor, batch: Batch) -> Any:
        """The logits of each question."""
        return dict(zip(self.names, self.logits(rows).split(self.counts, -1), strict=True))

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum over questions and examples, and the number of examples."""
        total = torch.zeros((), device=batch.device)
        for name in self.names:
            target = batch.answers[name].data
            total = total + F.cross_entropy(widened(outputs[name]), target, reduction="sum", label_smoothing=smoothing)
        return total, torch.tensor(float(batch.size), device=batch.device)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The likeliest class of each question, in their order."""
        classes: list[Any] = torch.stack([outputs[name].argmax(-1) for name in self.names], -1).tolist()
        return classes
