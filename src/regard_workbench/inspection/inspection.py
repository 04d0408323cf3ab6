"""A trained run on one example: its answer, and what the answer was drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from regard_workbench import models
from regard_workbench.inspection.attribution import Attribution, attributions
from regard_workbench.inspection.examples import choose, marked, prepare
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.loading import load_run


@dataclass(frozen=True)
class Inspection:
    """One model on one example."""

    shown: Shown
    attributions: list[Attribution]
    missing: list[str]  # why something is not shown
    answer: str  # what the model answered, in words; empty where that is not short


def inspect_run(folder: str | Path) -> Inspection:
    """The best checkpoint of a run on an example of its task."""
    task, model, _ = load_run(folder, tell=lambda text: None)
    return inspect_model(model, task)


def inspect_model(model: models.Model, task: Task) -> Inspection:
    """A model in evaluation mode on an example of its task."""
    batch, shown = prepare(task, marked(task, choose(task), model), model=model)
    shown = model.relabel(shown)
    maps, missing = attributions(model, batch, shown)
    return Inspection(shown, maps, missing, _answer(model, task, batch))


@torch.no_grad()
def _answer(model: models.Model, task: Task, batch: Batch) -> str:
    needs = task.problem.answer.needs
    if needs == "pooled":
        predicted = model.predict(model(batch), batch)[0]
        if not isinstance(predicted, int):
            return ""
        right = None if batch.targets is None else int(batch.targets[0])
        if right is None or predicted == right:
            return f"says “{task.decode([predicted])}”" + (", which is right" if right is not None else "")
        return f"says “{task.decode([predicted])}”; it is “{task.decode([right])}”"
    if needs == "decoder":
        best = model.generate(batch)[0]
        return f"writes “{task.decode(best[0].tokens)}”" if best else ""
    return ""
