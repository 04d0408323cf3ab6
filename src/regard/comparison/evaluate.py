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
from regard.tasks import continuation
from regard.tasks.language import Language
from regard.tasks.problem import Batch
from regard.tasks.task import Sums, Task
from regard.tasks.translate import Translate
from regard.training.evaluation import evaluate, undisturbed
from regard.training.loading import Loaded, load
from regard.training.protocol import Asked, Fingerprint, decoding_of

SPLITS = ("train", "validation", "test")
BATCH_SIZE = 32  # where neither the caller nor the run has one

# What a number is a mean over; a metric that is not here counts what the loss counts.
EXAMPLES_COUNT = ("exact_match", "bleu", "macro_f1", "bits_per_sequence", "wrong_bits")
NAMES = {"translate": "sentences", "bits": "sequences"}
TERMS = {"language": "tokens", "masked": "hidden tokens", "translate": "tokens", "bits": "vectors"}
# Made from another metric's sums.
MADE_FROM = {
    "perplexity": "loss",
    "bits_per_character": "loss",
    "bleu": "exact_match",
    "macro_f1": "accuracy",
}

CONTINUED = (
    "the first half of a sentence is given, each token of the second half is judged given all before it"
)
HIDDEN = "the first half of a sentence is given, the second half is hidden at once and guessed"


@dataclass(frozen=True)
class MeasuredMetric:
    """One metric of a split: its value (None where it is not finite), and how many of what it is a mean over."""

    metric: str
    value: float | None
    count: int
    of: str  # "tokens", "sentences", …


@dataclass(frozen=True)
class Evaluation:
    """All metrics of a run on a split, and the signature of what was evaluated."""

    metrics: list[MeasuredMetric]
    split: str
    examples: int
    decides: str  # the metric by which checkpoints are chosen
    signature: dict[str, Any]

    def __getitem__(self, metric: str) -> float | None:
        """The value of a metric."""
        for one in self.metrics:
            if one.metric == metric:
                return one.value
        raise unknown_name("metric", metric, [one.metric for one in self.metrics])

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
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measure a run on a split.

    `data`: other files than the run's own. `batch_size`: as in training by default. `limit`: only the first examples.
    `on_progress` is called with the number of examples done and their total.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    for name, value in (("batch_size", batch_size), ("beam", beam), ("limit", limit)):
        if value is not None and value < 1:
            raise BadValue(f"{name}: expected at least 1, got {value}.")
    loaded = load(str(run), checkpoint, device, data)
    batch_size = batch_size or loaded.config.batch_size or BATCH_SIZE
    task, decoding = loaded.task, decoding_of(loaded.task, beam)
    model = Asked(loaded.model, decoding)
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

    sums: Sums = {}

    def keep(found: Sums) -> list[Sums]:
        sums.update(found)
        return [found]

    finished = evaluate(
        task,
        model,
        split,
        batch_size=batch_size,
        limit=limit,
        seed=loaded.config.seed,
        place=to_device,
        gather=keep,
    )
    rows = [_row(task, name, value, sums) for name, value in (finished or {}).items()]
    protocol: dict[str, Any] = {"decoding": decoding or None}
    if isinstance(task, Language):
        more, sentences = _continued(task, model, split, batch_size, loaded.device)
        rows += more
        protocol["continuation"] = {
            "sentences": sentences,
            "how": CONTINUED if task.problem.kind == "language" else HIDDEN,
        }
    if isinstance(task, Translate) and any(row.metric == "bleu" for row in rows):
        protocol["bleu"] = task.signature()
    on_progress(count, count)
    signature = _signature(loaded, split, count, fingerprint.hexdigest, batch_size) | protocol
    return Evaluation(rows, split, count, task.metric, signature)


def _row(task: Task, name: str, value: float, sums: Sums) -> MeasuredMetric:
    source = name if name in sums else MADE_FROM.get(name, "loss")
    of = (NAMES if name in EXAMPLES_COUNT else TERMS).get(task.problem.kind, "examples")
    return MeasuredMetric(name, _finite(value), round(sums.get(source, (0.0, 0.0))[1]), of)


@torch.no_grad()
def _continued(
    task: Language, model: Asked, split: str, batch_size: int, device: torch.device
) -> tuple[list[MeasuredMetric], int]:
    """How well sentences are continued from their openings, and how many there were."""
    totals: dict[str, tuple[float, float]] = {}
    sentences = 0
    with undisturbed(model):
        for batch in task.continuation_batches(split, batch_size):
            sentences += batch.size
            for name, (total, count) in continuation.measure(model, batch.to(device)).items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = (before[0] + total, before[1] + count)
    rows = [
        MeasuredMetric(name, _finite(total / count), round(count), "continued tokens")
        for name, (total, count) in totals.items()
        if count
    ]
    return rows, sentences


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
        "changes": [dataclasses.asdict(one) for one in loaded.changes],
        "device": str(loaded.device),
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        "regard": regard.__version__,
        "torch": torch.__version__,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
