"""The place of one of several candidates, and what it was to fit: two questions with one head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from regard_workbench.tasks.answers.answer import Answer
from regard_workbench.tasks.answers.questions import QuestionsHead
from regard_workbench.tasks.measures.metrics import SHARE, Answered, Mean, Metric
from regard_workbench.tasks.parts.batch import Batch


class Found(NamedTuple):
    """The logits of both questions."""

    place: Tensor  # (b,candidates)
    digit: Tensor  # (b,10)


@dataclass(frozen=True)
class Place(Answer):
    """Where the candidate stands that fits, and which digit was told."""

    candidates: int
    digits: int  # that may be told
    needs: ClassVar[str] = "pooled"
    words: ClassVar[str] = "the place of the candidate that fits, and the digit that was told"

    @property
    def outputs(self) -> int:
        """One logit for each place and each digit."""
        return self.candidates + self.digits

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> PlaceHead:
        """One linear map for both."""
        return PlaceHead(Found._fields, (self.candidates, self.digits), dim)


class PlaceHead(QuestionsHead):
    """Both questions are trained together: streams are hard to compare before any of them can be read."""

    def forward(self, rows: Tensor, batch: Batch) -> Found:
        """The logits, apart."""
        return Found(**super().forward(rows, batch))

    def loss(self, outputs: Found, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of both cross-entropies, and the number of examples."""
        return super().loss(outputs._asdict(), batch, smoothing)

    def predict(self, outputs: Found, batch: Batch) -> list[Any]:
        """The likeliest place."""
        places: list[Any] = outputs.place.argmax(-1).tolist()
        return places


def _ranks(answered: Answered) -> Tensor:
    """The rank of the right candidate, from 1."""
    scores, places = answered.outputs.place, answered.batch.targets
    assert places is not None
    ranks: Tensor = (scores > scores.gather(1, places[:, None])).sum(1) + 1
    return ranks


def _first(answered: Answered) -> tuple[float, float]:
    """How often the right candidate has the highest score."""
    rank = answered.once(_ranks)
    return float((rank == 1).sum()), float(len(rank))


def _reciprocal(answered: Answered) -> tuple[float, float]:
    rank = answered.once(_ranks)
    return float((1 / rank).sum()), float(len(rank))


def _heard(answered: Answered) -> tuple[float, float]:
    right = answered.outputs.digit.argmax(-1) == answered.batch.answers["digit"].data
    return float(right.sum()), float(len(right))


METRICS: tuple[Metric, ...] = (
    Mean("accuracy", unit=SHARE, over="examples", look=_first),
    Mean("recall_at_1", unit=SHARE, over="queries", look=_first),
    Mean("mrr", over="queries", look=_reciprocal),
    Mean("digit_accuracy", unit=SHARE, over="examples", look=_heard),
)
