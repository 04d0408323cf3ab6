"""Associative recall: shown a list of items and one of them again, say which came after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.generated.bits import BitsTask, Tape, Width, with_answer
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.task import Recipe, task


@dataclass(frozen=True)
class ItemShape(Width):
    """The vectors of an item and their width."""

    item_length: int


@task("recall")
class Recall(BitsTask):
    """Recalls the item that followed another: items of bit vectors, each after a mark; one of them between two marks
    of another kind; then blank steps for the item that came after it.

    Paper: Graves et al. 2014, section 4.3. The items of a sequence differ, so that there is one right answer.
    """

    fitted = Kept(ItemShape)
    recipe = Recipe(model="ntm", steps=4000, batch_size=16, lr=1e-3, warmup=0)

    min_items: int = option("fewest items of a sequence", at_least(2), default=2)
    max_items: int = option("most items in training and validation", at_least(2), default=6)
    item_length: int = option("vectors of an item", at_least(1), default=3)
    bits: int = option("width of a vector", at_least(1), default=6)
    test_items: int | None = option("items of all test sequences; default: as in training", at_least(2), default=None)
    seed: int = option("which sequences are generated", whole_number, default=0)

    def check_options(self) -> None:
        if self.max_items < self.min_items:
            raise BadValue(f"max_items: expected at least min_items={self.min_items}, got {self.max_items}.")
        if self.most > 2 ** min(60, self.bits * self.item_length):
            raise BadValue(
                f"bits: {self.most} different items need more than {self.item_length} vectors of {self.bits} bits."
            )

    def fit(self) -> ItemShape:
        return ItemShape(self.bits, self.item_length)

    @property
    def most(self) -> int:
        """Items of the longest sequence."""
        return max(self.max_items, self.test_items or 0)

    @property
    def longest(self) -> int:
        vectors = self.fitted.item_length  # the items after their marks, the question between its marks, the answer
        return self.most * (vectors + 1) + vectors + 2 + vectors

    def tape(self, split: str, index: int) -> Tape:
        bits, draws = self.fitted.bits, Draws("recall", self.seed, split, index)
        count = self.min_items + draws.below(self.max_items - self.min_items + 1)
        if split == "test" and self.test_items is not None:
            count = self.test_items
        items = self._items(draws, count)
        cue = draws.below(count - 1)  # the last item has none after it
        item_mark, question_mark = np.eye(bits + 2, dtype=np.uint8)[-2:, None]
        shown = [bit_rows for item in items for bit_rows in (item_mark, _wide(item))]
        shown += [question_mark, _wide(items[cue]), question_mark]
        return with_answer(np.concatenate(shown), items[cue + 1])

    def _items(self, draws: Draws, count: int) -> list[NDArray[np.uint8]]:
        items: dict[bytes, NDArray[np.uint8]] = {}
        while len(items) < count:
            item = draws.bits(self.fitted.item_length, self.fitted.bits)
            items.setdefault(item.tobytes(), item)
        return list(items.values())


def _wide(item: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An item with the channels of the marks."""
    return np.pad(item, ((0, 0), (0, 2)))
