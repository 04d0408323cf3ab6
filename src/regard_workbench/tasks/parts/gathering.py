"""Several batches gathered from tensors at once: small ones take less time so than an operation or two for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from regard_workbench.tasks.parts.batch import INPUTS, TARGETS, Batch, Stream


def joined(chosen: Sequence[Sequence[int]]) -> Tensor:
    """The examples of several batches in a row."""
    # By way of NumPy: `torch.tensor` takes several times as long for a list.
    return torch.from_numpy(np.fromiter(chain.from_iterable(chosen), np.int64))


def cut_apart(chosen: Sequence[Sequence[int]], inputs: Tensor, targets: Tensor) -> list[Batch]:
    """Batches of one stream and one target; the rows of all batches lie one after the other in both tensors."""
    sizes = [len(batch) for batch in chosen]
    slices = zip(chosen, inputs.split(sizes), targets.split(sizes), strict=True)
    return [
        Batch({INPUTS: Stream(input_rows)}, {TARGETS: Stream(right)}, tuple(batch))
        for batch, input_rows, right in slices
    ]
