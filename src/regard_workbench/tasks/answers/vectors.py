"""The rows of a model themselves, for models without a head: BERT's or GPT-2's hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from regard_workbench.tasks.answers.answer import Answer, Head


@dataclass(frozen=True)
class RowVectors(Answer):
    """A vector for each position, (b,n,width): the rows as they are."""

    width: int
    needs: ClassVar[str] = "rows"
    scored: ClassVar[bool] = False
    words: ClassVar[str] = "a vector for each position"
    terms: ClassVar[str] = "positions"

    @property
    def outputs(self) -> int:
        """The width of a row."""
        return self.width

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> Head:
        """No parameters."""
        return Head(self.width)


@dataclass(frozen=True)
class PastRowVectors(RowVectors):
    """The same from a model in which a position sees only earlier ones."""

    needs: ClassVar[str] = "past"
