"""Patches as pixels from 0 to 1, whatever the mean and spread that a task has normalised them by.

>>> import torch
>>> from regard_workbench.tasks.parts.streams import Patches
>>> spec = Patches.of(channels=1, height=4, width=4, side=2, mean=(0.5,), spread=(0.25,))
>>> to_pixels(torch.tensor([[[-2.0, 0.0, 1.0, 2.0]]]), spec).tolist()
[[[0.0, 0.5, 0.75, 1.0]]]
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard_workbench.tasks.parts.streams import Patches


def to_pixels(rows: Tensor, spec: Patches) -> Tensor:
    """Numbers of a stream (b,n,width) as pixels."""
    if not spec.mean:
        return rows
    mean, spread = _columns(rows, spec)
    return rows * spread + mean


def from_pixels(pixels: Tensor, spec: Patches) -> Tensor:
    """Pixels (b,n,width) as the numbers of a stream."""
    if not spec.mean:
        return pixels
    mean, spread = _columns(pixels, spec)
    return (pixels - mean) / spread


def _columns(rows: Tensor, spec: Patches) -> tuple[Tensor, Tensor]:
    """Mean and spread of each number of a patch, whose channels follow each other."""
    both = (torch.tensor(statistic, dtype=rows.dtype, device=rows.device) for statistic in (spec.mean, spec.spread))
    mean, spread = (statistic.repeat_interleave(spec.side**2) for statistic in both)
    return mean, spread
