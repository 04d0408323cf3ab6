"""What `regard evaluate` finds: the metrics of a split, over how much each is a mean, and what was evaluated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

import regard
from regard.tasks import continuation
from regard.tasks.language import Language
from regard.tasks.problem import Batch
from regard.tasks.task import Sums, Task
from regard.tasks.translate import Translate
from regard.training.evaluation import evaluate, undisturbed
from regard.training.loading import Loaded
from regard.training.protocol import Asked, Fingerprint, decoding_of

Found = dict[str, Any]

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
    model = Asked(loaded.model, decoding)
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
        place=place,
        gather=keep,
    )
    rows = [_row(task, name, value, sums) for name, value in (finished or {}).items()]
    protocol: Found = {"decoding": decoding or None}
    if isinstance(task, Language):
        more, sentences = _continued(task, model, split, batch_size, loaded.device)
        rows += more
        protocol["continuation"] = {
            "sentences": sentences,
            "how": CONTINUED if task.problem.kind == "language" else HIDDEN,
        }
    if isinstance(task, Translate) and any(row["metric"] == "bleu" for row in rows):
        protocol["bleu"] = task.signature()
    seen(count, count)
    return {
        "metrics": rows,
        "split": split,
        "examples": count,
        "decides": task.metric,
        "signature": _signature(loaded, split, count, read.hexdigest, batch_size) | protocol,
    }


def _row(task: Task, name: str, value: float, sums: Sums) -> Found:
    source = name if name in sums else MADE_FROM.get(name, "loss")
    of = (NAMES if name in EXAMPLES_COUNT else TERMS).get(task.problem.kind, "examples")
    return {"metric": name, "value": _plain(value), "count": round(sums.get(source, (0.0, 0.0))[1]), "of": of}


@torch.no_grad()
def _continued(
    task: Language, model: Asked, split: str, batch_size: int, device: torch.device
) -> tuple[list[Found], int]:
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
        {"metric": name, "value": _plain(total / count), "count": round(count), "of": "continued tokens"}
        for name, (total, count) in totals.items()
        if count
    ]
    return rows, sentences


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
