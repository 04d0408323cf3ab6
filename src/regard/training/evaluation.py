"""Measuring a model on a split, and reading a run back from its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import models
from regard.errors import BadValue
from regard.tasks.batch import Batch
from regard.tasks.metrics import Answered, States, merged, observe, values
from regard.tasks.task import SPLITS, Task
from regard.training import heartbeat
from regard.training.config import Config
from regard.training.data import generator
from regard.training.loading import load, to_stderr
from regard.training.random_state import RandomState


def evaluate(
    task: Task,
    model: models.Model,
    split: str = "validation",
    *,
    batch_size: int = 32,
    limit: int | None = None,
    seed: int = 0,
    place: Callable[[Batch], Batch] | None = None,
    stop: Callable[[], bool] = lambda: False,
    surrounding: Callable[[], Any] = nullcontext,
    share: tuple[int, int] = (0, 1),
    gather: Callable[[States], list[States]] | None = None,
    each: Callable[[States], None] = lambda states: None,
) -> dict[str, float] | None:
    """The metrics of a split, from the merged states of all batches. None if `stop` said so before the end.

    `place` brings a batch to the model; `surrounding` is entered around each call (autocast); `share` (i, n) looks at
    every n-th batch only, and `gather` then collects the states of n processes; `each` gets those of every batch.
    """
    states = states_of(
        task, model, split, batch_size=batch_size, limit=limit, seed=seed, place=place, stop=stop,
        surrounding=surrounding, share=share, gather=gather, each=each,
    )  # fmt: skip
    return None if states is None else values(task.metrics(), states)


def states_of(
    task: Task,
    model: models.Model,
    split: str = "validation",
    *,
    batch_size: int = 32,
    limit: int | None = None,
    seed: int = 0,
    place: Callable[[Batch], Batch] | None = None,
    stop: Callable[[], bool] = lambda: False,
    surrounding: Callable[[], Any] = nullcontext,
    share: tuple[int, int] = (0, 1),
    gather: Callable[[States], list[States]] | None = None,
    each: Callable[[States], None] = lambda states: None,
) -> States | None:
    """The merged state of each metric, as `evaluate` makes values of it."""
    if split not in SPLITS:
        raise BadValue(f"split: expected one of {', '.join(SPLITS)}, got {split!r}.")
    examples = task.examples(split)
    count = len(examples) if limit is None else min(limit, len(examples))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    place = place or (lambda batch: batch.to(device))
    metrics, parts = task.metrics(), []
    with undisturbed(model), torch.no_grad():
        for number, start in enumerate(range(0, count, batch_size)):
            heartbeat.beat()
            if stop():
                return None
            if number % share[1] != share[0]:
                continue
            chosen = range(start, min(start + batch_size, count))
            batch = task.batch(examples, chosen, generator(seed, split, number), model)
            with surrounding():
                found = observe(metrics, Answered(model, place(batch)))
            each(found)
            parts.append(found)
    states = merged(metrics, parts)
    return states if gather is None else merged(metrics, gather(states))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards modes and random generators are as they were, so that looking changes nothing."""
    training = {module: module.training for module in model.modules()}
    before = RandomState.now()
    model.eval()
    try:
        yield
    finally:
        before.restore()
        for module, mode in training.items():
            module.training = mode


def load_run(
    folder: str | Path,
    *,
    data: tuple[str, ...] | None = None,
    device: str | torch.device = "cpu",
    tell: Callable[[str], None] = to_stderr,
) -> tuple[Task, models.Model, Config]:
    """The task, the model with its best weights, and the settings of a run; `data` takes the place of the run's files.

    `folder` may also be one checkpoint of a run.
    """
    found = load(folder, device=device, data=data, tell=tell)
    return found.task, found.model, found.config
