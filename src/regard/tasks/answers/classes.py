"""One of several classes: for the whole example, or for each of its positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from regard.tasks.answers.answer import Answer


@dataclass(frozen=True)
class OneOf(Answer):
    """The class of an example: logits (b,classes); the target (b,) holds the class."""

    classes: int
    needs: ClassVar[str] = "pooled"
    words: ClassVar[str] = "the class of an example"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return self.classes

    def probabilities(self, outputs: Any) -> Tensor | None:
        """The softmax of the logits."""
        found: Tensor = outputs.float().softmax(-1)
        return found


@dataclass(frozen=True)
class EachOf(Answer):
    """A class for each position: logits (b,n,classes); the target (b,n) counts where its `keep` says so."""

    classes: int
    needs: ClassVar[str] = "rows"
    words: ClassVar[str] = "a class for each position"
    terms: ClassVar[str] = "positions"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return self.classes
