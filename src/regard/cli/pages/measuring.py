"""What `regard evaluate` finds: the metrics of a split, over how much each is a mean, and what was evaluated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

import regard
from regard.tasks.batch import Batch
from regard.tasks.metrics import Metric, State
from regard.tasks.task import Task
from regard.training.evaluation import DecodingModel, Fingerprint, decoding_of, evaluation_mode, metric_states
from regard.training.loading import Loaded

Found = dict[str, Any]


def measured(
    loaded: Loaded,
    split: str,
    *,
    batch_size: int,
    beam: int | None = None,
    limit: int | None = None,
    seen: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """All metrics of a split with their counts, and the signature; `seen` hears how many examples are done."""
    task, decoding = loaded.task, decoding_of(loaded.task, beam)
    model = DecodingModel(loaded.model, decoding)
    count = len(task.examples(split))
    count = count if limit is None else min(limit, count)
    read = Fingerprint()
    done = 0

    def place(batch: Batch) -> Batch:
        nonlocal done
        seen(done, count)
        done += batch.size
        read.add(batch)
        return batch.to(loaded.device)

    states = metric_states(
        task, model, split, batch_size=batch_size, limit=limit, seed=loaded.config.seed, to_device=place
    )
    rows = [
        _row(task, metric, states[metric.name]) for metric in task.metrics() if metric.name in (states or {})
    ]
    with evaluation_mode(model):
        more = task.examine(model, split, batch_size=batch_size, device=loaded.device)
    rows += [_row(task, metric, state) for metric, state in more]
    protocol: Found = {"decoding": decoding or None, **task.protocol()}
    seen(count, count)
    return {
        "metrics": rows,
        "split": split,
        "examples": count,
        "decides": task.metric.name,
        "signature": _signature(loaded, split, count, read.hexdigest, batch_size) | protocol,
    }


def _row(task: Task, metric: Metric, state: State) -> Found:
    answer = task.problem.answer
    count = metric.count(state)
    return {
        "metric": metric.name,
        "value": _plain(metric.value(state)),
        "count": round(count) if math.isfinite(count) else None,
        "of": metric.over or answer.terms,
        "text": metric.text(metric.value(state)),
    }


def _signature(loaded: Loaded, split: str, count: int, digest: str, batch_size: int) -> Found:
    config = loaded.config
    return {
        "run": str(loaded.run),
        "checkpoint": loaded.checkpoint,
        "checkpoint_sha256": loaded.sha256,
        "task": config.task,
        "model": config.model,
        "attention": config.attention,
        "direction": loaded.task.direction(),
        "data": list(config.data) or None,
        "data_sha256": digest,  # of the examples as the model read them, generated ones too
        "split": split,
        "examples": count,
        "batch_size": batch_size,
        "seed": config.seed,
        "changes": [dataclasses.asdict(one) for one in loaded.changes],
        "device": str(loaded.device),
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        "regard": regard.__version__,
        "torch": torch.__version__,
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
