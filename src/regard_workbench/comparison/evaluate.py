"""`evaluate_run(…)`: every metric of a run's task on a split, and a signature of what was evaluated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import regard
from regard.errors import BadValue, unknown_name
from regard.support.display import html_table
from regard_workbench.tasks.measures.completion import MOST
from regard_workbench.tasks.measures.metrics import Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.evaluation import DecodingModel, Fingerprint, decoding_of, evaluation_mode, metric_states
from regard_workbench.training.loading import Loaded, load

SPLITS = ("train", "validation", "test")
BATCH_SIZE = 32  # where neither the caller nor the run has one


@dataclass(frozen=True)
class MeasuredMetric:
    """One metric of a split: its value, and over how much of what it was computed."""

    metric: str
    value: float | None  # None: not finite
    count: int | None  # None: the metric has no count
    of: str  # "tokens", "sentences", …
    text: str  # the value as people read it


@dataclass(frozen=True)
class Evaluation:
    """All metrics of a run on a split, and the signature of what was evaluated."""

    metrics: list[MeasuredMetric]
    split: str
    examples: int
    decides: str  # the metric by which checkpoints are chosen
    signature: dict[str, Any]
    protocol: dict[str, str]  # how a metric is computed, where that needs saying

    def __getitem__(self, metric: str) -> float | None:
        """The value of a metric."""
        for measurement in self.metrics:
            if measurement.metric == metric:
                return measurement.value
        raise unknown_name("metric", metric, [measurement.metric for measurement in self.metrics])

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = [
            (
                measurement.metric,
                measurement.text,
                "" if measurement.count is None else f"{measurement.count:,} {measurement.of}",
            )
            for measurement in self.metrics
        ]
        return html_table(("metric", "value", "over"), rows, f"{self.split}, {self.examples:,} examples")

    def to_dict(self) -> dict[str, Any]:
        """As plain data: what `regard evaluate --json` prints."""
        return dataclasses.asdict(self)


def evaluate_run(
    run: str | Path,
    split: str = "test",
    *,
    checkpoint: str | None = None,
    data: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    limit: int | None = None,
    bad_files: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measure a run on a split.

    `data`: other files than the run's own. `batch_size`: as in training by default. `limit`: only the first examples.
    `length_penalty`: of beam search, by default the task's own. `bad_files`: stop or skip at a picture that cannot be
    read, by default as in training.
    `on_progress` is called with the number of examples done and their total.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    for name, value in (("batch_size", batch_size), ("beam", beam), ("limit", limit)):
        if value is not None and value < 1:
            raise BadValue(f"{name}: expected at least 1, got {value}.")
    loaded = load(str(run), checkpoint, device, data, bad_files)
    batch_size = batch_size or loaded.config.batch_size or BATCH_SIZE
    task, decoding = loaded.task, decoding_of(loaded.task, beam, length_penalty)
    model = DecodingModel(loaded.model, decoding)
    count = len(task.examples(split))
    count = count if limit is None else min(limit, count)
    fingerprint = Fingerprint()
    done = 0

    def to_device(batch: Batch) -> Batch:
        nonlocal done
        on_progress(done, count)
        done += batch.size
        fingerprint.add(batch)
        return batch.to(loaded.device)

    states = metric_states(
        task, model, split, batch_size=batch_size, limit=limit, seed=loaded.config.seed, to_device=to_device
    )
    measured_states = [(metric, states[metric.name]) for metric in task.metrics() if states and metric.name in states]
    with evaluation_mode(model):
        most = MOST if limit is None else min(limit, MOST)
        measured_states += task.completed(model, split, batch_size=batch_size, most=most, device=loaded.device)
        task.examined = limit
        measured_states += task.examine(model, split, batch_size=batch_size, device=loaded.device)
    on_progress(count, count)
    signature = _signature(loaded, split, count, fingerprint.hexdigest, batch_size)
    protocol = {name: str(how) for name, how in task.protocol().items()}
    signature |= {"decoding": decoding or None, **protocol}
    rows = [_measured(task, metric, state) for metric, state in measured_states]
    return Evaluation(rows, split, count, task.metric.name, signature, protocol)


def _measured(task: Task, metric: Metric, state: State) -> MeasuredMetric:
    value, count = metric.value(state), metric.count(state)
    return MeasuredMetric(
        metric.name,
        _finite(value),
        round(count) if math.isfinite(count) else None,
        metric.over or task.problem.answer.terms,
        metric.text(value),
    )


def _signature(loaded: Loaded, split: str, count: int, digest: str, batch_size: int) -> dict[str, Any]:
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
        "changes": [dataclasses.asdict(change) for change in loaded.changes],
        "device": str(loaded.device),
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        "regard": regard.__version__,
        "torch": torch.__version__,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
