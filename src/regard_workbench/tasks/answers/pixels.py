"""An answer that is a class for each pixel of a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class PixelClasses(Answer):
    """One of `classes` for each pixel: the target is (b,height,width), its `keep` False where a pixel does not count.

    Outputs are scores (b,height,width,classes).
    """

    classes: int
    needs: ClassVar[str] = "pixels"
    words: ClassVar[str] = "a class for each pixel"
    terms: ClassVar[str] = "pixels"
    units: ClassVar[str] = "pictures"

    @property
    def outputs(self) -> int:
        """The classes."""
        return self.classes

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> PixelHead:
        """The scores are the answer: a model makes them itself."""
        return PixelHead(self.classes)


class PixelHead(Head):
    """The cross-entropy of each pixel's class."""

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The likeliest class of each pixel: rows of the picture from top to bottom."""
        chosen: Tensor = outputs.argmax(-1)
        classes: list[Any] = chosen.tolist()
        return classes
