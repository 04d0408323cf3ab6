"""The item that a user takes next, as a ranking of all items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.tasks.answers.answer import Answer, Head
from regard.tasks.batch import Batch

TOP = 10  # items of a prediction


@dataclass(frozen=True)
class NextItem(Answer):
    """A score for each item at each position of a history; id 0 is padding and no item.

    The target is the history, one position on, or (b,1): what follows the last position.
    """

    count: int  # of ids, padding included
    needs: ClassVar[str] = "past"
    words: ClassVar[str] = "the next item of a history"
    terms: ClassVar[str] = "items"
    units: ClassVar[str] = "users"

    @property
    def outputs(self) -> int:
        """One score for each id."""
        return self.count

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> NextItemHead:
        """A linear map to the scores; its weights may be those of the items' embedding."""
        return NextItemHead(self.count, dim, tied)


class NextItemHead(Head):
    """Scores by one linear map; the loss is the cross-entropy over all items."""

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """Scores (b,n,count) where the target has all positions; else (b,1,count), those after the last position."""
        targets = batch.targets
        if targets is None or targets.shape[1] < rows.shape[1]:
            rows = last_rows(rows, batch.keep)
        scores: Tensor = self.logits(rows)
        return scores

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The best items for each history, none of which is in it."""
        scores = outputs[:, -1].float().clone()
        scores[:, 0] = -torch.inf
        scores.scatter_(1, batch.inputs, -torch.inf)
        values, best = scores.topk(min(TOP, scores.shape[1]))
        return [
            [number for number, value in zip(row, kept, strict=True) if value > -torch.inf]
            for row, kept in zip(best.tolist(), values.tolist(), strict=True)
        ]


def last_rows(rows: Tensor, keep: Tensor | None) -> Tensor:
    """The row of the last real position of each example, (b,1,dim)."""
    if keep is None:
        return rows[:, -1:]
    last = (keep.sum(1) - 1).clamp(min=0)
    return rows.gather(1, last[:, None, None].expand(-1, 1, rows.shape[2]))
