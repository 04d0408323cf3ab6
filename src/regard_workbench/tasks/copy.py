"""Copy: read bit vectors, then repeat them from memory."""

from __future__ import annotations

import numpy as np

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.generated.bits import BitsTask, Tape, Width, with_answer
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.parts.task import Recipe, task


@task("copy")
class Copy(BitsTask):
    """Repeats a sequence of random bit vectors of any length: a mark, the vectors, another mark, then blank steps.

    Paper: Graves et al. 2014, section 4.1.
    """

    recipe = Recipe(
        model="ntm",
        optimizer="rmsprop",
        steps=30_000,
        batch_size=1,
        lr=1e-4,
        warmup=0,
        schedule="constant",
        clip=100.0,
        reaches={"bits_per_sequence": 0.01},
    )

    min_length: int = option("shortest sequence of vectors", at_least(1), default=1)
    max_length: int = option("longest sequence of vectors in training and validation", at_least(1), default=20)
    bits: int = option("width of a vector", at_least(1), default=8)
    test_length: int | None = option("length of all test sequences; default: as in training", at_least(1), default=None)
    seed: int = option("which sequences are generated", whole_number, default=0)

    def check_options(self) -> None:
        if self.max_length < self.min_length:
            raise BadValue(f"max_length: expected at least min_length={self.min_length}, got {self.max_length}.")

    def fit(self) -> Width:
        return Width(self.bits)

    @property
    def longest(self) -> int:
        return 2 * max(self.max_length, self.test_length or 0) + 2  # both marks, the vectors and their copy

    def tape(self, split: str, index: int) -> Tape:
        bits, draws = self.fitted.bits, Draws("copy", self.seed, split, index)
        length = self.min_length + draws.below(self.max_length - self.min_length + 1)
        if split == "test" and self.test_length is not None:
            length = self.test_length
        vectors = draws.bits(length, bits)
        shown = np.zeros((length + 2, bits + 2), dtype=np.uint8)
        shown[0, bits] = shown[length + 1, bits + 1] = 1
        shown[1 : length + 1, :bits] = vectors
        return with_answer(shown, vectors)
