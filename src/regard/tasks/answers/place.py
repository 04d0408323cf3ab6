"""The place of one of several candidates, and what it was to fit: two questions with one head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.tasks.answers.answer import Answer, Head
from regard.tasks.batch import Batch


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
        return PlaceHead(self, dim)


class PlaceHead(Head):
    """Both questions are trained together: streams are hard to compare before any of them can be read."""

    def __init__(self, answer: Place, dim: int | None) -> None:
        super().__init__(answer.outputs, dim)
        self.candidates = answer.candidates

    def forward(self, rows: Tensor, batch: Batch) -> Found:
        """The logits, apart."""
        found = self.logits(rows)
        return Found(found[:, : self.candidates], found[:, self.candidates :])

    def loss(self, outputs: Found, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of both cross-entropies, and the number of examples."""
        total = torch.zeros((), device=batch.device)
        for logits, target in zip(outputs, batch.answers.values(), strict=True):
            total = total + F.cross_entropy(
                logits.float(), target.data, reduction="sum", label_smoothing=smoothing
            )
        return total, torch.tensor(float(batch.size), device=batch.device)

    def predict(self, outputs: Found, batch: Batch) -> list[Any]:
        """The likeliest place."""
        found: list[Any] = outputs.place.argmax(-1).tolist()
        return found
