"""One of several candidates, ranked by a score for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.measures.metrics import SHARE, Answered, Mean, Metric
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class Ranks(Answer):
    """Which of the candidates are right: scores (b,c); the target (b,c) holds 1 where one is, its `keep` says which
    candidates there are."""

    needs: ClassVar[str] = "candidates"
    words: ClassVar[str] = "the best of several candidates"

    @property
    def outputs(self) -> int:
        """One score for each candidate, of which an example may have any number."""
        return 1

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> RanksHead:
        """A linear map from the row of a candidate to its score."""
        return RanksHead(1, dim)


class RanksHead(Head):
    """The loss is −log of the share that a softmax over the candidates gives to the right ones."""

    def forward(self, rows: Tensor, batch: Batch) -> Any:
        """(b,c,dim) → (b,c); −inf where there is no candidate."""
        scores: Tensor = self.logits(rows)[..., 0]
        keep = next(reversed(list(batch.streams.values()))).keep
        return scores if keep is None else scores.masked_fill(~keep.flatten(2).any(-1), -torch.inf)

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Summed over examples, and the number of examples."""
        assert batch.targets is not None
        scores = widened(outputs)
        right = scores.masked_fill(batch.targets == 0, -torch.inf)
        losses = scores.logsumexp(-1) - right.logsumexp(-1)
        return losses.sum(), losses.new_full((), len(losses))

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The candidates of each example, best first; of equal ones the lower number first."""
        order: list[Any] = outputs.argsort(dim=-1, descending=True, stable=True).tolist()
        return order


def places(scores: Tensor, right: Tensor) -> Tensor:
    """The place of each candidate among the wrong ones, from 1; equal scores count against it. (b,c)"""
    wrong = scores.masked_fill(right > 0, -torch.inf)
    above = (wrong[:, None, :] >= scores[:, :, None]) & (wrong[:, None, :] > -torch.inf)
    return 1 + above.sum(-1)


@dataclass(frozen=True)
class _Recall:
    """The share of right candidates in the first k places, summed over examples. A class, so that it can be pickled."""

    k: int

    def __call__(self, answered: Answered) -> tuple[float, float] | None:
        if answered.batch.targets is None:
            return None
        return self.of(answered.outputs, answered.batch.targets)

    def of(self, scores: Tensor, right: Tensor) -> tuple[float, float]:
        """From scores and what is right, (b,c) each."""
        hits = (places(scores, right) <= self.k) & (right > 0)
        return float((hits.sum(-1) / (right > 0).sum(-1)).sum()), float(len(right))


@dataclass(frozen=True)
class _Reciprocal(_Recall):
    """One divided by the place of the best right candidate."""

    def of(self, scores: Tensor, right: Tensor) -> tuple[float, float]:
        """From scores and what is right, (b,c) each."""
        reciprocal = (1 / places(scores, right).double()).masked_fill(right == 0, 0)
        return float(reciprocal.amax(-1).sum()), float(len(right))


LOOKS = {"recall_at_1": _Recall(1), "recall_at_2": _Recall(2), "recall_at_5": _Recall(5), "mrr": _Reciprocal(0)}
METRICS: tuple[Metric, ...] = tuple(
    Mean(name, unit=SHARE if name != "mrr" else "", over="contexts", look=look) for name, look in LOOKS.items()
)
