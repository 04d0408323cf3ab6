"""Values of slots, one of them or none for each slot, or several for some, as the state of a dialogue has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.parts.batch import Batch

OUTSIDE = -1  # the target of a slot whose value is none of those known: it teaches nothing
TURNS = "turns"  # the note of a batch that says for each row which example it belongs to, and its number there

Words = tuple[tuple[int, ...], ...]  # the words of a text, each as the ids of a position of the stream


@dataclass(frozen=True)
class Slot:
    """A slot with its values, in words of the stream. `several`: any number of values may hold, else one or none."""

    name: Words
    values: tuple[Words, ...]
    several: bool = False

    @property
    def scores(self) -> int:
        """One for each value, and one for "none of them" where only one may hold."""
        return len(self.values) + (not self.several)


@dataclass(frozen=True)
class SlotValues(Answer):
    """The values of slots: scores (b,·), those of one slot after the other.

    The target (b,columns) has a column for each slot that takes one value (0: none, i: its i-th value, `OUTSIDE`: one
    that is not listed) and a column of 0 or 1 for each value of the others.
    """

    slots: tuple[Slot, ...]
    needs: ClassVar[str] = "slots"
    scored: ClassVar[bool] = False
    words: ClassVar[str] = "the values of slots"
    terms: ClassVar[str] = "turns"
    units: ClassVar[str] = "dialogues"

    @property
    def outputs(self) -> int:
        """The scores of all slots."""
        return sum(slot.scores for slot in self.slots)

    @property
    def columns(self) -> int:
        """The width of the target."""
        return sum(len(slot.values) if slot.several else 1 for slot in self.slots)

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> SlotsHead:
        """The scores are the answer: a model makes them itself, from rows of whatever width."""
        return SlotsHead(self)


class SlotsHead(Head):
    """A softmax over the values of a slot and "none"; a yes or no for each value where several may hold."""

    def __init__(self, answer: SlotValues) -> None:
        super().__init__(answer.outputs)
        self.answer = answer

    def parts(self, outputs: Tensor) -> list[tuple[Slot, Tensor]]:
        """The scores of each slot."""
        sizes = [slot.scores for slot in self.answer.slots]
        return list(zip(self.answer.slots, outputs.split(sizes, -1), strict=True))

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The losses of all slots of a turn, summed over turns, and the number of turns."""
        assert batch.targets is not None
        wide = widened(outputs)
        total, column = wide.new_zeros(()), 0
        for slot, scores in self.parts(wide):
            width = len(slot.values) if slot.several else 1
            target = batch.targets[:, column : column + width]
            column += width
            if slot.several:
                total = total + F.binary_cross_entropy_with_logits(scores, target.to(scores), reduction="sum")
            else:
                total = total + F.cross_entropy(
                    scores, target[:, 0], reduction="sum", ignore_index=OUTSIDE, label_smoothing=smoothing
                )
        return total, total.new_full((), len(outputs))

    def choices(self, outputs: Tensor) -> Tensor:
        """The likeliest target of each row, (b,columns)."""
        columns = [
            (scores > 0).long() if slot.several else scores.argmax(-1, keepdim=True)
            for slot, scores in self.parts(outputs)
        ]
        return torch.cat(columns, 1)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The choices of the turns of each example, one turn after the other, in one list."""
        rows: list[list[int]] = self.choices(outputs).tolist()
        places = batch.notes.get(TURNS) or tuple((row, 0) for row in range(len(rows)))
        by_example: dict[int, dict[int, list[int]]] = {}
        for (example, turn), row in zip(places, rows, strict=True):
            by_example.setdefault(example, {})[turn] = row
        return [[choice for turn in sorted(turns) for choice in turns[turn]] for _, turns in sorted(by_example.items())]
