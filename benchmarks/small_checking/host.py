"""What the host takes for a training step, and for which parts of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def host_parts(trainer: Any, steps: int = 400) -> dict[str, float]:
    """Microseconds per step that the host spends in parts of the loop; a part includes those that it calls."""
    from regard.training.cuda_graph.packed_batch import PackedBatch
    from regard.training.cuda_graph.step_group import QueuedSteps, StepGroup
    from regard.training.learner import Learner
    from regard.training.trainer import Trainer

    parts = {
        "fetching the batch": (type(trainer.data), "batch"), "snapshot": (Learner, "snapshot"),
        "copy-in of one step": (PackedBatch, "put"), "adding to a group": (StepGroup, "add"),
        "launch of a group": (StepGroup, "_launch"), "replay": (torch.cuda.CUDAGraph, "replay"),
        "waiting for a group": (QueuedSteps, "synchronize"), "reading results": (Trainer, "synchronize"),
        "whole step": (Trainer, "advance"),
    }  # fmt: skip
    spent = dict.fromkeys(parts, 0.0)
    kept = {name: getattr(owner, method) for name, (owner, method) in parts.items()}

    def clocked(name: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return kept[name](*given, **options)
            finally:
                spent[name] += time.perf_counter() - start

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


def host_us(trainer: Any) -> float:
    """Microseconds of the loop for a step that launches nothing: preparing the batch, counting, logging."""
    from regard.training.step import StepResult

    learner, kept = trainer.learner, trainer.learner._step

    class Nothing:
        replayed = True

        def __call__(self, batches: Any) -> StepResult:
            list(batches)
            return StepResult(1.0, 1.0)

    def step(batches: Any) -> StepResult:
        """What `Learner.step` does with a captured step, without moving the batch."""
        found: StepResult = learner._step(batches)
        return found

    learner._step, learner.step = Nothing(), step
    try:
        for count in (50, 1000):
            start = time.perf_counter()
            for _ in range(count):
                trainer.advance()
    finally:
        learner._step = kept
        del learner.step
    return (time.perf_counter() - start) / count * 1e6
