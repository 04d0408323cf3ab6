"""Copy: read bit vectors, then repeat them from memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.bits import ENDLESS, HELD_OUT, BitsTask, Tape, with_answer
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.parts.task import Recipe, task


@task("copy")
class Copy(BitsTask):
    """Repeats a sequence of random bit vectors of any length: a mark, the vectors, another mark, then blank steps.

    Paper: Graves et al. 2014, section 4.1.

    Args:
        min_length: shortest sequence of vectors
        max_length: longest sequence of vectors in training and validation
        bits: width of a vector
        test_length: length of all test sequences; default: as in training
        seed: which sequences are generated
    """

    pictured = False
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

    def __init__(
        self, min_length: int = 1, max_length: int = 20, bits: int = 8, test_length: int | None = None, seed: int = 0
    ) -> None:
        self.min_length = whole_number("min_length", min_length, 1)
        self.max_length = whole_number("max_length", max_length, 1)
        if self.max_length < self.min_length:
            raise BadValue(f"max_length: expected at least min_length={self.min_length}, got {self.max_length}.")
        self.bits = whole_number("bits", bits, 1)
        self.test_length = None if test_length is None else whole_number("test_length", test_length, 1)
        self.seed = whole_number("seed", seed)

    @property
    def longest(self) -> int:  # type: ignore[override]
        """Steps of the longest sequence: both marks, the vectors and their copy."""
        return 2 * max(self.max_length, self.test_length or 0) + 2

    def examples(self, split: str) -> Sequence[Tape]:
        """Sequences, generated on access."""
        size = ENDLESS if checked_split(split) == "train" else HELD_OUT
        return Generated(size, partial(self._tape, split))

    def _tape(self, split: str, index: int) -> Tape:
        draws = Draws("copy", self.seed, split, index)
        length = self.min_length + draws.below(self.max_length - self.min_length + 1)
        if split == "test" and self.test_length is not None:
            length = self.test_length
        vectors = draws.bits(length, self.bits)
        shown = np.zeros((length + 2, self.bits + 2), dtype=np.uint8)
        shown[0, self.bits] = 1
        shown[1 : length + 1, : self.bits] = vectors
        shown[length + 1, self.bits + 1] = 1
        return with_answer(shown, vectors)

    def state(self) -> dict[str, Any]:
        """The width, on which the weights depend."""
        return {"bits": self.bits}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the width."""
        self.bits = whole_number("bits", state["bits"], 1)
