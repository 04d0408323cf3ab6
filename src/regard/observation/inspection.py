"""What a trained run sees in one example: its answer, and everywhere it looked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from regard import models
from regard.observation.attribution import Attribution, attributions
from regard.observation.examples import ShownExample, choose, prepare
from regard.tasks.batch import Batch
from regard.tasks.task import Task
from regard.training.evaluation import load_run


@dataclass(frozen=True)
class Inspection:
    """An example through the eyes of one model."""

    example: ShownExample
    attributions: list[Attribution]
    missing: list[str]  # why something is not shown
    answer: str  # what the model said, in words; empty where there is nothing short to say


def inspect_run(folder: str | Path) -> Inspection:
    """The best checkpoint of a run, and the example that stands for its task."""
    task, model, _ = load_run(folder, tell=lambda text: None)
    return inspect_model(model, task)


def inspect_model(model: models.Model, task: Task) -> Inspection:
    """A model in evaluation mode, and the example that stands for its task."""
    batch, example = prepare(task, choose(task))
    found, missing = attributions(model, batch, example)
    return Inspection(example, found, missing, _answer(model, task, batch))


@torch.no_grad()
def _answer(model: models.Model, task: Task, batch: Batch) -> str:
    if task.problem.answer.needs == "pooled":
        said, right = int(model(batch)[0].argmax()), None if batch.targets is None else int(batch.targets[0])
        if right is None or said == right:
            return f"says “{task.decode([said])}”" + (", which is right" if right is not None else "")
        return f"says “{task.decode([said])}”; it is “{task.decode([right])}”"
    if task.problem.answer.needs == "decoder":
        best = model.generate(batch)[0]
        return f"writes “{task.decode(best[0].tokens)}”" if best else ""
    return ""
