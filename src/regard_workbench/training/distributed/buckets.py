"""The buckets in which DDP adds up the gradients of all processes, laid out before the first step.

DDP lays them out anew after the first backward pass of a process, in the order in which the gradients came. A sum of
three numbers or more depends in its last bits on where it stands in a bucket, so the first step after a resume would
differ from the same step of a run that was never interrupted. One backward pass before training, of which nothing is
kept, makes the layout the same in every step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from regard_workbench.training.state import RandomState


def lay_out(model: nn.Module, backward: Callable[[], None], device: str) -> None:
    """Call `backward`, and undo what it changed: gradients, buffers and random states. A collective."""
    random = RandomState.now(device)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    backward()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    model.zero_grad(set_to_none=True)
    random.restore()
