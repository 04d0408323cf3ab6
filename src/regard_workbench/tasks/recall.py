"""Associative recall: shown a list of items and one of them again, say which came after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.bits import ENDLESS, HELD_OUT, BitsTask, Tape, with_answer
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.parts.task import Recipe, task


@task("recall")
class Recall(BitsTask):
    """Recalls the item that followed another: items of bit vectors, each after a mark; one of them between two marks
    of another kind; then blank steps for the item that came after it.

    Paper: Graves et al. 2014, section 4.3. The items of a sequence differ, so that there is one right answer.

    Args:
        min_items: fewest items of a sequence
        max_items: most items in training and validation
        item_length: vectors of an item
        bits: width of a vector
        test_items: items of all test sequences; default: as in training
        seed: which sequences are generated
    """

    pictured = False
    recipe = Recipe(model="ntm", steps=4000, batch_size=16, lr=1e-3, warmup=0)

    def __init__(
        self,
        min_items: int = 2,
        max_items: int = 6,
        item_length: int = 3,
        bits: int = 6,
        test_items: int | None = None,
        seed: int = 0,
    ) -> None:
        self.min_items = whole_number("min_items", min_items, 2)
        self.max_items = whole_number("max_items", max_items, 2)
        if self.max_items < self.min_items:
            raise BadValue(f"max_items: expected at least min_items={self.min_items}, got {self.max_items}.")
        self.item_length = whole_number("item_length", item_length, 1)
        self.bits = whole_number("bits", bits, 1)
        self.test_items = None if test_items is None else whole_number("test_items", test_items, 2)
        self.seed = whole_number("seed", seed)
        most = max(self.max_items, self.test_items or 0)
        if most > 2 ** min(60, self.bits * self.item_length):
            raise BadValue(
                f"bits: {most} different items need more than {self.item_length} vectors of {self.bits} bits."
            )

    @property
    def longest(self) -> int:  # type: ignore[override]
        """Steps of the longest sequence: the items, the question between its marks, the answer."""
        most = max(self.max_items, self.test_items or 0)
        return most * (self.item_length + 1) + self.item_length + 2 + self.item_length

    def examples(self, split: str) -> Sequence[Tape]:
        """Sequences, generated on access."""
        size = ENDLESS if checked_split(split) == "train" else HELD_OUT
        return Generated(size, partial(self._tape, split))

    def _items(self, draws: Draws, count: int) -> list[NDArray[np.uint8]]:
        found: dict[bytes, NDArray[np.uint8]] = {}
        while len(found) < count:
            item = draws.bits(self.item_length, self.bits)
            found.setdefault(item.tobytes(), item)
        return list(found.values())

    def _tape(self, split: str, index: int) -> Tape:
        draws = Draws("recall", self.seed, split, index)
        count = self.min_items + draws.below(self.max_items - self.min_items + 1)
        if split == "test" and self.test_items is not None:
            count = self.test_items
        items = self._items(draws, count)
        asked = draws.below(count - 1)  # the last item has none after it
        item_mark, question_mark = np.eye(self.bits + 2, dtype=np.uint8)[-2:, None]
        shown = [part for item in items for part in (item_mark, self._wide(item))]
        shown += [question_mark, self._wide(items[asked]), question_mark]
        return with_answer(np.concatenate(shown), items[asked + 1])

    def _wide(self, item: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.pad(item, ((0, 0), (0, 2)))

    def state(self) -> dict[str, Any]:
        """The width, on which the weights depend, and the shape of an item."""
        return {"bits": self.bits, "item_length": self.item_length}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the width and the item length."""
        self.bits, self.item_length = (
            whole_number("bits", state["bits"], 1),
            whole_number("item_length", state["item_length"], 1),
        )
