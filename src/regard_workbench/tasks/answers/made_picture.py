"""An answer that is a picture, made by the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch


@dataclass(frozen=True)
class MadePicture(Answer):
    """A picture of so many channels, rows and columns of pixels; the target (b,channels,height,width) is a real one.

    Outputs are pictures (b,channels,height,width) of numbers from 0 to 1.
    """

    channels: int
    height: int
    width: int
    needs: ClassVar[str] = "picture"
    words: ClassVar[str] = "a picture"
    units: ClassVar[str] = "pictures"

    @property
    def outputs(self) -> int:
        """The channels of a pixel."""
        return self.channels

    def head(self, dim: int | None = None, tied: Any = None) -> MadePictureHead:
        """The picture is the answer: a model makes it itself."""
        return MadePictureHead(self.channels)


class MadePictureHead(Head):
    """The picture as it is. How it is judged in training is up to the model, which has a loss of its own."""

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """None: many pictures are right, and the target is only one of them."""
        raise NotImplementedError("a model that makes pictures defines their loss")

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """Each picture as numbers: channels, rows, columns."""
        pictures: list[Any] = outputs.float().tolist()
        return pictures
