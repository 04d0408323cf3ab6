"""Handwritten digits: scikit-learn's 1,797 real images of 8 × 8, read as a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.support.declared import one_of, option
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.gathering import cut_apart, joined
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Vectors
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures.written_digits import CLASSES, SIDE, images, numbers_of, typed

ORDERS = {"rows": (SIDE, SIDE), "pixels": (SIDE * SIDE, 1)}


class Image(NamedTuple):
    """An image as a sequence of vectors (n, width) from 0 to 1, and the digit it shows."""

    pixels: Tensor
    digit: int | None  # None where a user gave the image


class Images(list[Image]):
    """The images of a split."""

    even = True  # all are of one length

    def __init__(self, pixels: Tensor, digits: Tensor) -> None:
        super().__init__(Image(*pair) for pair in zip(pixels, digits.tolist(), strict=True))
        self.pixels, self.digits = pixels, digits  # of all, (count,n,width) and (count,)


class DigitPresenter(Presenter["Digits"]):
    """Shows images, and reads them from files."""

    takes = ("image",)

    def parse(self, task: Digits, given: Mapping[str, str]) -> Any:
        """A picture as the 8 × 8 numbers the task is about: light writing on a dark ground."""
        if set(given) != {"image"}:
            return super().parse(task, given)
        return Image(typed(given["image"]).reshape(task.shape), None)

    def show(self, task: Digits, example: Image, batch: Batch) -> Shown:
        """The image, with the names of its rows or pixels."""
        rows = [f"row {n}" for n in range(SIDE)]
        pieces = rows if task.order == "rows" else [f"{n // SIDE},{n % SIDE}" for n in range(SIDE * SIDE)]
        words = "an image" if example.digit is None else f"an image of a {example.digit}"
        picture = np.asarray(example.pixels.reshape(SIDE, SIDE).numpy(), np.float32)
        return Shown(words, pieces, "patches", picture=picture, grid=(SIDE, len(pieces) // SIDE))


@task("digits")
class Digits(Task):
    """Says which digit an image shows: 1,797 real 8 × 8 images, 70 % for training, 15 % each for
    validation and test.
    """

    presenter = DigitPresenter()
    recipe = Recipe(
        model="encoder",
        steps=500,
        batch_size=32,
        lr=1e-3,
        warmup=50,
        models={"dynamic-transformer": "dynamic-transformer(layers=2)"},  # as many as static-transformer has
        compared=("static-transformer", "dynamic-transformer", "lstm-attention"),  # the user's table
        reaches={"accuracy": 0.94},
    )

    order: str = option(
        "rows (8 positions of 8 numbers) or pixels (64 positions of one)", one_of(ORDERS), default="rows"
    )

    @property
    def shape(self) -> tuple[int, int]:
        """Positions of an image, and numbers of each."""
        return ORDERS[self.order]

    def streams(self) -> dict[str, Vectors]:
        """Rows or pixels."""
        length, width = self.shape
        return {INPUTS: Vectors(width, length)}

    def answers(self) -> list[OneOf]:
        """Ten classes."""
        return [OneOf(CLASSES)]

    def examples(self, split: str) -> Sequence[Image]:
        """The images of a split, in the order of the data set."""
        pixels, digits = images()
        chosen = list(numbers_of(split))
        return Images(torch.from_numpy(pixels[chosen].reshape(-1, *self.shape)), torch.tensor(digits)[chosen])

    def length(self, example: Image) -> int:
        """Positions: the same for all."""
        return len(example.pixels)

    def collate(self, examples: Sequence[Image], generator: torch.Generator) -> Batch:
        """Images and their digits; nothing to pad."""
        if not examples:
            return Batch.of(torch.zeros(0, *self.shape), targets=torch.zeros(0, dtype=torch.long))
        digits = [example.digit for example in examples if example.digit is not None]
        targets = torch.tensor(digits) if len(digits) == len(examples) else None
        return Batch.of(torch.stack([example.pixels for example in examples]), targets=targets)

    def batches(
        self, examples: Sequence[Image], chosen: Sequence[Sequence[int]], generators: Iterable[torch.Generator]
    ) -> list[Batch] | None:
        """Images gathered for several batches at once, unless another class makes its batches otherwise."""
        if not isinstance(examples, Images) or type(self).collate is not _COLLATE:
            return None
        index = joined(chosen)
        return cut_apart(chosen, examples.pixels.index_select(0, index), examples.digits.index_select(0, index))


_COLLATE = Digits.collate
