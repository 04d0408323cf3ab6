"""The ground a picture stands on: one example of a task, as a batch, in pieces that people can read.

The same example for every model of a task, so that their pictures can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.tasks.batch import Batch
from regard.tasks.digits import SIDE, Digits
from regard.tasks.task import Task
from regard.training.data import generator

LONGEST = 40  # positions of a text in a picture: more cannot be read
SHORTEST, COMFORTABLE = 8, 24  # an example of such a length is looked for
SEARCHED = 200  # examples


@dataclass(frozen=True)
class ShownExample:
    """What stands at each position of an example."""

    inputs: list[str]
    targets: list[str] = field(default_factory=list)  # what a model that writes is to write
    image: Tensor | None = None  # (8,8) from 0 to 1, where the positions are rows or pixels of an image
    words: str = ""  # what the example is


def choose(task: Task, split: str = "validation") -> Any:
    """The example of a split to make pictures of: the first of a comfortable length, else the first."""
    examples = task.examples(split)
    first = range(min(SEARCHED, len(examples)))
    fitting = (i for i in first if SHORTEST <= task.length(examples[i]) <= COMFORTABLE)
    return examples[next(fitting, 0)]


def prepare(task: Task, example: Any) -> tuple[Batch, ShownExample]:
    """A batch of one example, cut where it is too long to be shown, and what its positions are."""
    batch = task.collate([example], generator(0, "validation", 0))
    needs = task.problem.answer.needs
    if needs not in ("decoder", "pooled"):
        batch = _cut(batch)
    length = batch.inputs.shape[1]
    if isinstance(task, Digits):
        names = "row" if length == SIDE else "pixel"
        numbered = [f"{names} {number}" for number in range(length)]
        image = example.pixels.reshape(SIDE, SIDE)
        return batch, ShownExample(numbered, image=image, words=f"an image of a {example.digit}")
    if batch.inputs.dim() == 3:
        return batch, ShownExample([f"step {number}" for number in range(length)], words=f"{length} steps")
    inputs = _pieces(task, "input_pieces", example, length)
    if needs == "rows":
        inputs = _pieces(task, "output_pieces", batch.inputs[0].tolist(), length)
    targets: list[str] = []
    if needs == "decoder" and batch.targets is not None:
        written = batch.targets[0].tolist()
        targets = _pieces(task, "output_pieces", written, len(written))
    return batch, ShownExample(inputs, targets, words=f"“{_sentence(inputs)}”")


def _cut(batch: Batch) -> Batch:
    return batch.map(lambda tensor: tensor[:, :LONGEST])


def _pieces(task: Task, method: str, given: Any, length: int) -> list[str]:
    """What a task calls its positions; their numbers, where it has no names for them."""
    offered = getattr(task, method, None)
    found: Sequence[str] = offered(given) if callable(offered) else []
    numbered = [str(number) for number in range(length)]
    return [*found[:length], *numbered[len(found) :]]


def _sentence(pieces: Sequence[str]) -> str:
    letters = all(len(piece) <= 1 for piece in pieces)
    return " ".join(("" if letters else " ").join(pieces).split())
