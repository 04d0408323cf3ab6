"""One of several classes: for the whole example, for each of its positions, or for those whose token is hidden."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class OneOf(Answer):
    """The class of an example: logits (b,classes); the target (b,) holds the class.

    `offset`: whether the logits are corrections of scores that a batch brings as its `offset`.
    """

    classes: int
    offset: bool = field(default=False, kw_only=True)
    needs: ClassVar[str] = "pooled"
    classed: ClassVar[bool] = True
    words: ClassVar[str] = "the class of an example"
    kind: ClassVar[str] = "class"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return self.classes

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> Head:
        """Logits, added to the batch's offset if there is one."""
        return OffsetHead(self.outputs, dim, tied) if self.offset else super().head(dim, tied)

    def probabilities(self, outputs: Any) -> Tensor | None:
        """The softmax of the logits."""
        probabilities: Tensor = widened(outputs).softmax(-1)
        return probabilities


class OffsetHead(Head):
    """Logits W·row + b + g·offset, where the gain g is learned: an offset as in a generalised linear model.

    W starts at 0 and g at 1, so that an untrained model answers with the offset, and learns to correct it.
    """

    def __init__(self, outputs: int, dim: int | None = None, tied: nn.Embedding | None = None) -> None:
        super().__init__(outputs, dim, tied)
        if isinstance(self.logits, nn.Linear) and tied is None:
            nn.init.zeros_(self.logits.weight)
        self.gain = nn.Parameter(torch.ones(1))  # not a scalar: FSDP cannot shard one

    def forward(self, rows: Tensor, batch: Batch) -> Any:
        """The outputs for rows: logits."""
        if batch.offset is None:
            raise BadValue("batch: its answer adds an offset to the logits, but it has none.")
        return self.logits(rows) + self.gain * batch.offset.to(rows.dtype)


@dataclass(frozen=True)
class EachOf(Answer):
    """A class for each position: logits (b,n,classes); the target (b,n) counts where its `keep` says so."""

    classes: int
    needs: ClassVar[str] = "rows"
    classed: ClassVar[bool] = True
    words: ClassVar[str] = "a class for each position"
    terms: ClassVar[str] = "positions"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return self.classes


@dataclass(frozen=True)
class HiddenTokens(EachOf):
    """The tokens that `blank` hides: logits (b,n,classes); the target counts where one is hidden."""

    blank: int = 0
    words: ClassVar[str] = "the hidden tokens of a sequence"
    kind: ClassVar[str] = "filled"
    terms: ClassVar[str] = "hidden tokens"
