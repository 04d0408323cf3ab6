"""A trained run in the Hub's form: its model, its task with vocabulary and labels, and a card with what it reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard.registry import parse
from regard_workbench import tasks
from regard_workbench.comparison.evaluate import evaluate_run
from regard_workbench.models import Model, from_pretrained, save_pretrained
from regard_workbench.models.pretrained.files import MOST_INDEX, read_object
from regard_workbench.models.pretrained.saving import upload, write_text
from regard_workbench.models.pretrained.source import located
from regard_workbench.tasks.parts.task import TASKS, Task
from regard_workbench.training.loading import load

TASK = "task.json"
FOLDER = "hub"


def save_run(
    run: str | Path,
    folder: str | Path | None = None,
    *,
    checkpoint: str | None = None,
    data: str | None = None,
    split: str = "test",
    device: str = "auto",
    limit: int | None = None,
) -> Path:
    """Write a run to a folder as `save_pretrained` writes a model, with the metrics of a split in its card.

    folder: by default `hub` in the run's own.
    `task.json` holds the task with its vocabulary and labels, which `load_saved` reads.
    """
    loaded = load(run, checkpoint, device, data)
    evaluation = evaluate_run(run, split, checkpoint=checkpoint, data=data, device=device, limit=limit)
    results = {
        f"{split} {measurement.metric}": measurement.value
        for measurement in evaluation.metrics
        if measurement.value is not None
    }
    signature = "|".join(f"{name}:{value}" for name, value in evaluation.signature.items())
    target = loaded.run / FOLDER if folder is None else folder
    saved = save_pretrained(loaded.model, target, results=results, signature=signature)
    described = {"task": loaded.config.task, "state": loaded.task.state()}
    write_text(saved / TASK, json.dumps(described, ensure_ascii=False, sort_keys=True) + "\n")
    return saved


def push_run(run: str | Path, name: str, *, private: bool = False, token: str | None = None, **options: Any) -> str:
    """Save a run as `save_run` does and upload it to the Hub as `name`; returns the address of the commit."""
    return upload(lambda folder: save_run(run, folder, **options), name, private=private, token=token)


def load_saved(name: str | Path, *, device: str = "cpu") -> tuple[Task, Model]:
    """The task and the model that `save_run` wrote to a folder, or `push_run` to the Hub.

    >>> task, model = load_saved("me/opinions")                                 # doctest: +SKIP
    >>> batch = task.collate([task.encode("a fine evening")], torch.Generator())    # doctest: +SKIP
    >>> task.decode([model(batch).argmax().item()])                             # doctest: +SKIP
    'praise'
    """
    folder = located(name)
    description = read_object(folder / TASK, MOST_INDEX)
    text, state = description.get("task"), description.get("state")
    if not isinstance(text, str) or not isinstance(state, dict):
        raise BadValue(f"name: expected the text of a task and its state in {TASK} of {folder}.")
    plain, options = parse(text)
    TASKS[plain]  # raises for an unknown name
    try:
        task = tasks.build(plain, state, **options)
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as trouble:
        raise BadValue(f"name: the state in {TASK} does not fit {plain}: {str(trouble)[:100]}.") from None
    model = from_pretrained(folder, device=device)
    if model.problem not in task.problems():
        raise BadValue(f"name: the task in {TASK} poses another problem than the model was built for.")
    task.pose(model.problem)
    return task, model
