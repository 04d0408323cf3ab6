"""Mean intersection over union of the classes of pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from regard_workbench.tasks.measures.metrics import SHARE, Answered, Counts

BOTH, EITHER = "both", "either"


def _look(answered: Answered) -> dict[str, float]:
    """For each class the pixels that have it in prediction and target, and those that have it in either."""
    outputs, targets = answered.outputs, answered.batch.targets
    assert targets is not None
    classes = outputs.shape[-1]
    guessed, right = outputs.argmax(-1)[answered.counts], targets[answered.counts]
    pairs = torch.bincount(right * classes + guessed, minlength=classes**2).reshape(classes, classes)
    both = pairs.diagonal()
    either = pairs.sum(0) + pairs.sum(1) - both
    counts = {f"{BOTH} {label}": float(number) for label, number in enumerate(both.tolist())}
    counts.update({f"{EITHER} {label}": float(number) for label, number in enumerate(either.tolist())})
    return {**counts, "pixels": float(len(right))}


def _value(counts: Mapping[str, float]) -> float:
    shares = [
        counts[f"{BOTH} {name.removeprefix(EITHER).strip()}"] / number
        for name, number in counts.items()
        if name.startswith(EITHER) and number
    ]
    return float(np.mean(shares)) if shares else float("nan")


# Over all pixels of the split; the mean is over the classes that stand in any target or any prediction.
MEAN_IOU = Counts("mean_iou", unit=SHARE, over="pixels", look=_look, made=_value, total="pixels")
