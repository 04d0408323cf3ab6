"""The item that a user takes next, as a ranking of all items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch

TOP = 10  # items of a prediction


@dataclass(frozen=True)
class NextItem(Answer):
    """A score for each item at each position of a history; id 0 is padding and no item.

    The target is the history, one position on, or (b,1): what follows the last position.
    """

    count: int  # of ids, padding included
    negatives: int = 0  # items drawn for each position in training that the right one is set against; 0: all items
    calibration: float = 0.0  # how far scores learned from few negatives are brought back to those of all, 0 to 1
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
        return NextItemHead(self, dim, tied)


class NextItemHead(Head):
    """Scores by one linear map. The loss is the cross-entropy over all items, or in training, with `negatives` = k,

        −β log σ(s⁺) − Σ_{i=1…k} log σ(−s_i),   β = α (t (1 − 1/α) + 1/α),   α = k / (items − 1)

    for the score s⁺ of the right item and those of k others, drawn uniformly for each position among the items that are
    not in the history: what a user took earlier or later is no example of what he does not take. t is `calibration`.
    With t = 0 this is the binary cross-entropy of Kang and McAuley 2018 (k = 1), with t > 0 the generalised one of
    Petrov and Macdonald 2023. Validations measure the cross-entropy over all items in both cases.
    """

    def __init__(self, answer: NextItem, dim: int | None = None, tied: nn.Embedding | None = None) -> None:
        super().__init__(answer.outputs, dim, tied)
        self.count, self.negatives = answer.count, answer.negatives
        share = answer.negatives / max(1, answer.count - 2)
        self.weight = 1.0 - answer.calibration * (1.0 - share)

    def each_loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The loss of each position, (b,n)."""
        if not (self.negatives and self.training):
            return super().each_loss(outputs, batch, smoothing)
        assert batch.targets is not None
        right = batch.targets[..., None]
        drawn, any_left = drawn_others(
            torch.cat([batch.inputs, batch.targets], 1), self.count, (*batch.targets.shape[1:], self.negatives)
        )
        scores = widened(outputs)
        right_loss = self.weight * nn.functional.softplus(-scores.gather(-1, right)[..., 0])
        negative_loss = nn.functional.softplus(scores.gather(-1, drawn)).sum(-1)
        return right_loss + negative_loss * any_left[:, None]

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """Scores (b,n,count) where the target has all positions; else (b,1,count), those after the last position."""
        targets = batch.targets
        if targets is None or targets.shape[1] < rows.shape[1]:
            rows = last_rows(rows, batch.keep)
        scores: Tensor = self.logits(rows)
        return scores

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The best items for each history, none of which is in it."""
        scores = widened(outputs[:, -1]).clone()
        scores[:, 0] = -torch.inf
        scores.scatter_(1, batch.inputs, -torch.inf)
        values, best = scores.topk(min(TOP, scores.shape[1]))
        return [
            [number for number, value in zip(row, kept, strict=True) if value > -torch.inf]
            for row, kept in zip(best.tolist(), values.tolist(), strict=True)
        ]


def drawn_others(taken: Tensor, count: int, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Draw `size` ids for each row of `taken` (b,n), uniformly among ids 1 … count − 1 that are not in the row.

    Also returns which rows leave any id to draw, (b,); the others get id 0.
    """
    free = torch.ones(taken.shape[0], count, dtype=torch.bool, device=taken.device)
    free[:, 0] = False
    free.scatter_(1, taken, False)
    place = free.cumsum(1)  # the r-th free id is the first whose place is r
    left = place[:, -1:]
    chosen = torch.rand(taken.shape[0], math.prod(size), device=taken.device)
    # In float32 the product may round up to `left`.
    chosen = torch.minimum((chosen * left).long(), (left - 1).clamp(min=0)) + 1
    drawn = torch.searchsorted(place, chosen)
    any_left = left[:, 0] > 0
    return drawn.masked_fill(~any_left[:, None], 0).view(-1, *size), any_left


def last_rows(rows: Tensor, keep: Tensor | None) -> Tensor:
    """The row of the last real position of each example, (b,1,dim)."""
    if keep is None:
        return rows[:, -1:]
    last = (keep.sum(1) - 1).clamp(min=0)
    return rows.gather(1, last[:, None, None].expand(-1, 1, rows.shape[2]))
