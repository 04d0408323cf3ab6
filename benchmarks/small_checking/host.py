"""What the host takes for a training step, and for which parts of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def host_parts(trainer: Any, steps: int = 400, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Microseconds per step that the host spends in parts of the loop; a part includes those that it calls."""
    from regard_workbench.training.engines.cuda_graph.engine import CapturedEngine
    from regard_workbench.training.engines.cuda_graph.packed_batch import PackedBatch
    from regard_workbench.training.engines.cuda_graph.step_group import QueuedSteps, StepGroup
    from regard_workbench.training.engines.eager import EagerEngine
    from regard_workbench.training.loop import Trainer

    parts = {
        "fetching the batch": (type(trainer.data), "batch"),
        "snapshot": (CapturedEngine if isinstance(trainer.engine, CapturedEngine) else EagerEngine, "snapshot"),
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


def host_us(trainer: Any) -> float:
    """Microseconds of the loop for a step that launches nothing: preparing the batch, counting, logging."""
    from regard_workbench.training.engines.engine import StepResult

    def step(batches: Any, rate: float, number: int) -> StepResult:
        list(batches)
        return StepResult(1.0, 1.0)

    trainer.engine.step = step
    try:
        for count in (50, 1000):
            start = time.perf_counter()
            for _ in range(count):
                trainer.advance()
    finally:
        del trainer.engine.step
    return (time.perf_counter() - start) / count * 1e6


class NoDevice:
    """In place of a graph, an event and the update of a step: nothing happens, and it is done at once."""

    def nothing(self, *given: Any) -> None:
        """Do nothing."""

    replay = record = synchronize = refresh = nothing

    def query(self) -> bool:
        """It is done."""
        return True


@contextmanager
def without_device(trainer: Any, group: int = 1) -> Iterator[None]:
    """Within the block, steps are queued, copied and read as captured ones are, but nothing computes them."""
    from regard_workbench.training.engines.cuda_graph import graphed_step
    from regard_workbench.training.engines.cuda_graph.engine import CapturedEngine
    from regard_workbench.training.engines.cuda_graph.packed_batch import PackedBatch
    from regard_workbench.training.engines.cuda_graph.step_group import CapturedStep, StepGroup
    from regard_workbench.training.engines.engine import MAX_PENDING

    nothing, engine = NoDevice(), trainer.engine
    kept = type(engine), graphed_step.StepGroup

    class Group(StepGroup):
        def _captured(self, *given: Any) -> Any:
            self.results.zero_()
            return nothing

        def _event(self) -> Any:
            return nothing

    class Empty(graphed_step.GraphedStep):
        def _capture(self, batch: Any) -> CapturedStep:
            slots = torch.zeros(len(self.pending), 3, dtype=torch.float64)
            self.slots, self.values, self.events = list(slots), list(slots.numpy()), [nothing] * len(slots)
            return CapturedStep(nothing, PackedBatch(batch, len(slots)), slots[0].clone(), draws=0)  # type: ignore[arg-type]

        def _warm_up(self, batch: Any) -> Any:
            return self._eager(batch)

    engine.__class__ = CapturedEngine
    step, engine._random, engine._drawn = engine.plain_step, None, 0
    step.update = None  # eager steps of the CPU have no fused update; captured ones ask theirs to refresh its copies
    engine.graphed_step = Empty(step, engine.optimizer, print, MAX_PENDING)
    engine.graphed_step.steps_per_graph = group
    for method in ("_replay", "_group"):
        setattr(engine.graphed_step, method, _updating(step, nothing, getattr(engine.graphed_step, method)))
    graphed_step.StepGroup = Group  # type: ignore[misc]
    try:
        yield
        trainer.synchronize()
    finally:
        engine.__class__, graphed_step.StepGroup = kept  # type: ignore[misc]


def _updating(step: Any, update: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, with an update of the step for its time only."""

    def called(*given: Any) -> Any:
        step.update = update
        try:
            return call(*given)
        finally:
            step.update = None

    return called
