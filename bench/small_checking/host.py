"""What the host takes for the parts of a training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def host_parts(trainer: Any, steps: int = 400, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Microseconds per step that the host spends in parts of the loop; a part includes those that it calls."""
    from regard_workbench.training.engines.cuda_graph.packed_batch import PackedBatch
    from regard_workbench.training.engines.cuda_graph.step_group import QueuedSteps, StepGroup
    from regard_workbench.training.loop import Trainer

    parts = {
        "fetching the batch": (type(trainer.data), "batch"),
        "snapshot": (type(trainer.engine), "snapshot"),
        "copy-in of one step": (PackedBatch, "put"),
        "adding to a group": (StepGroup, "add"),
        "launch of a group": (StepGroup, "_launch"),
        "replay": (torch.cuda.CUDAGraph, "replay"),
        "waiting for a group": (QueuedSteps, "synchronize"),
        "reading results": (Trainer, "synchronize"),
        "whole step": (Trainer, "advance"),
    }
    spent = dict.fromkeys(parts, 0.0)
    kept = {name: getattr(owner, method) for name, (owner, method) in parts.items()}

    def clocked(name: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            start = clock()
            try:
                return kept[name](*given, **options)
            finally:
                spent[name] += clock() - start

        return call

    for name, (owner, method) in parts.items():
        setattr(owner, method, clocked(name))
    try:
        for _ in range(steps):
            trainer.advance()
        trainer.synchronize()
    finally:
        for name, (owner, method) in parts.items():
            setattr(owner, method, kept[name])
    return {name: round(seconds / steps * 1e6, 1) for name, seconds in spent.items()}
