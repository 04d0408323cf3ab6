"""The mean F1 over the classes of texts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from regard_workbench.tasks.measures.metrics import SHARE, Answered, Counts


def _of_classes(answered: Answered) -> dict[str, float]:
    """For each class: the number of correct predictions, of predictions and of targets."""
    guessed, true = answered.outputs.argmax(-1), answered.batch.targets
    assert true is not None
    counts: dict[str, float] = {"texts": len(true)}
    for name, values in (("hits", true[guessed == true]), ("guessed", guessed), ("true", true)):
        for number, count in enumerate(torch.bincount(values).tolist()):
            if count:
                counts[f"{name} {number}"] = count
    return counts


def _macro_f1(counts: Mapping[str, float]) -> float:
    """The mean F1 over the classes that occur in targets or predictions."""
    numbers = {name.rpartition(" ")[2] for name in counts if name.startswith(("guessed ", "true "))}
    scores = []
    for number in sorted(numbers, key=int):
        hits, guessed, true = (counts.get(f"{name} {number}", 0.0) for name in ("hits", "guessed", "true"))
        if guessed + true:
            scores.append(2 * hits / (guessed + true))
    return sum(scores) / len(scores) if scores else math.nan


MACRO_F1 = Counts("macro_f1", unit=SHARE, look=_of_classes, made=_macro_f1, total="texts")
