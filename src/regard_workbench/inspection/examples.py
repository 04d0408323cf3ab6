"""The examples of a task that figures and pages show: the same for every model, so that they can be compared."""

from __future__ import annotations

from typing import Any

import torch

from regard.errors import BadValue
from regard_workbench.models import Model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.shown import LONGEST, Shown
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.data import generator

SHORTEST, COMFORTABLE = 8, 24  # positions of a readable example
NUMBERED = "test"  # the split that `--example N` counts, in every verb
SEARCHED = 200  # examples


def choose(task: Task, split: str = "validation") -> Any:
    """The first example of a split that has a readable length, else the first example."""
    examples = task.examples(split)
    first = range(min(SEARCHED, len(examples)))
    fitting = (i for i in first if SHORTEST <= task.length(examples[i]) <= COMFORTABLE)
    return examples[next(fitting, 0)]


def numbered(task: Task, number: int) -> Any:
    """The test example with a number from 0, as `--example` gives it."""
    examples = task.examples(NUMBERED)
    if not 0 <= number < len(examples):
        raise BadValue(f"--example: expected a number from 0 to {len(examples) - 1:,}, got {number}.")
    return examples[number]


def count_numbered(task: Task) -> int:
    """How many examples `numbered` knows; 0 for data without a test split."""
    try:
        return len(task.examples(NUMBERED))
    except BadValue:
        return 0


@torch.no_grad()
def marked(task: Task, example: Any, model: Model) -> Any:
    """An example with what the model predicts for it, where its task draws that on the picture."""
    if not task.defines("marked"):
        return example
    batch = prepare(task, example, longest=None)[0].to(next(model.parameters()).device)
    return task.marked(example, model.predict(model(batch), batch)[0])


def prepare(task: Task, example: Any, longest: int | None = LONGEST, model: Model | None = None) -> tuple[Batch, Shown]:
    """A batch of one example, and the labels of its positions.

    Where an answer belongs to each position of the input, the batch is cut after `longest` positions. Other answers
    need the whole input, and so does a graph, whose edges name positions. An agent acts with `model`.
    """
    batch = task.batch([example], [0], generator(0, "validation", 0), model)
    cuts = task.problem.answer.needs in ("rows", "past") and batch.first.edges is None
    if longest is not None and cuts:
        batch = batch.map(lambda tensor: tensor[:, :longest])
    return batch, task.show(example, batch)
