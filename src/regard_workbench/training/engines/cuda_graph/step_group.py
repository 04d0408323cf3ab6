"""Several steps of one shape as one CUDA graph: one copy, one launch and one event for all of them.

Batches are queued in pinned memory until the graph has one for each of its steps, while the groups launched before run:
the loop lets three of them be unread, so the device has work as long as a step takes it longer than the host. If a
result is asked for earlier (a validation, a checkpoint, the end of the run), the queued steps are launched one by one
with the graph of a single step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep
from regard_workbench.training.engines.cuda_graph.packed_batch import (
    ALIGNMENT,
    MAX_PINNED,
    RATE,
    SEED,
    HostBuffer,
    PackedBatch,
)
from regard_workbench.training.engines.engine import PendingStep


@dataclass(slots=True)
class CapturedStep:
    """The graph of a step for batches of one shape, with its inputs and its result."""

    graph: torch.cuda.CUDAGraph
    inputs: PackedBatch
    result: Tensor  # loss, gradient norm, whether the update was skipped
    gradients: Tensor | None = None  # addresses of its gradients, for the fused update
    draws: int | None = None  # random numbers that it draws; None before its first replay


class QueuedSteps:
    """The queued steps of one launch. It is also what their results wait for."""

    def __init__(self, group: StepGroup, ring: int) -> None:
        self.group, self.ring = group, ring
        self.steps: list[PendingStep] = []
        self.event: Any = None  # recorded after the launch
        self.ended = False

    def query(self) -> bool:
        """Whether the results are there."""
        if not self.ended and self.event is not None:
            self.ended = bool(self.event.query())
        return self.ended

    def synchronize(self) -> None:
        """Wait for the results; launch the steps first if they are still queued."""
        if self.event is None:
            self.group.flush()
        if not self.ended:
            self.event.synchronize()
            self.ended = True


class Ring(list[HostBuffer]):
    """The host memory of one launch: a buffer for each of its steps, one after the other in one block."""

    def __init__(self, packed: PackedBatch, count: int, pitch: int, pinned: bool) -> None:
        self.memory = torch.empty(count * pitch, dtype=torch.uint8, pin_memory=pinned)
        super().__init__(packed.host_buffer(self.memory[i * pitch : (i + 1) * pitch]) for i in range(count))
        self.slots = torch.empty(count, 3, dtype=torch.float64, pin_memory=pinned)  # for the results
        self.results = list(self.slots.numpy())


class StepGroup:
    """The graph of `count` steps, and the queue of batches for it. `rings`: launches whose results may be unread."""

    def __init__(
        self,
        step: CapturableStep,
        optimizer: torch.optim.Optimizer,
        single: CapturedStep,
        batch: Batch,
        count: int,
        pool: Any,
        rings: int,
    ) -> None:
        self.step, self.single, self.count = step, single, count
        packed = single.inputs
        self.pitch = -(-packed.size // ALIGNMENT) * ALIGNMENT
        if rings * count * self.pitch > MAX_PINNED:
            raise RuntimeError("its batches take too much pinned memory")
        pinned = batch.device.type == "cuda"
        self.memory = torch.empty(count * self.pitch, dtype=torch.uint8, device=batch.device)
        self.rings = [Ring(packed, count, self.pitch, pinned) for _ in range(rings)]
        self.results = torch.empty(count, 3, dtype=torch.float64, device=batch.device)
        self.runs: list[QueuedSteps | None] = [None] * rings
        self.number = 0  # of the launch that is being filled
        self.latest: PendingStep | None = None
        self.graph = self._captured(optimizer, batch, pool)

    def _parts(self, packed: PackedBatch, memory: Tensor) -> list[dict[str, Tensor]]:
        return [packed.views(memory[i * self.pitch : (i + 1) * self.pitch]) for i in range(self.count)]

    def _captured(self, optimizer: torch.optim.Optimizer, batch: Batch, pool: Any) -> Any:
        update = self.step.update
        assert update is not None
        update.ready()
        tables, addresses = [update.table() for _ in range(self.count)], []
        device_parts = self._parts(self.single.inputs, self.memory)
        for packed in device_parts:
            for name, tensor in batch.tensors().items():
                packed[name].copy_(tensor)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            for packed, table, result in zip(device_parts, tables, self.results, strict=True):
                optimizer.zero_grad(set_to_none=True)
                rate, seed = packed.pop(RATE), packed.pop(SEED)
                loss = self.step.backward(batch.filled(packed), None if self.step.seed is None else seed)
                update(loss, table, rate, result)
                addresses.append(update.gradient_addresses())
        for table, chunks in zip(tables, addresses, strict=True):
            update.write(table, chunks)
        self.tables = tables
        return graph

    @property
    def queued(self) -> int:
        """Steps that are not launched yet."""
        run = self.runs[self.number % len(self.runs)]
        return len(run.steps) if run is not None and run.event is None else 0

    def add(self, batch: Batch, rate: float | None, check: Callable[..., None], seed: int = 0) -> PendingStep:
        """Queue one step; the last of a group launches all."""
        number = self.number % len(self.runs)
        run = self.runs[number]
        if run is None or run.event is not None:
            if run is not None:
                for step in run.steps:  # before memory and slots are used again
                    step.read()
            run = self.runs[number] = QueuedSteps(self, number)
        ring, place = self.rings[number], len(run.steps)
        ring[place].fill(batch, rate or 0.0, seed)
        self.latest = latest = PendingStep(ring.results[place], run, check)
        run.steps.append(latest)
        if place + 1 == self.count:
            self._launch(run, whole=True)
        return latest

    def flush(self) -> None:
        """Launch what is queued, step by step."""
        if self.queued:
            run = self.runs[self.number % len(self.runs)]
            assert run is not None
            self._launch(run, whole=False)

    def _launch(self, run: QueuedSteps, whole: bool) -> None:
        if self.step.update is not None:
            self.step.update.refresh()
        ring, single = self.rings[run.ring], self.single
        if whole:
            self.memory.copy_(ring.memory, non_blocking=True)
            self.graph.replay()
            ring.slots.copy_(self.results, non_blocking=True)
        else:
            for place in range(len(run.steps)):
                begin = place * self.pitch
                single.inputs.memory.copy_(ring.memory[begin : begin + single.inputs.size], non_blocking=True)
                single.graph.replay()
                ring.slots[place].copy_(single.result, non_blocking=True)
        run.event = self._event()
        self.number += 1

    def _event(self) -> Any:
        event = torch.cuda.Event()
        event.record()
        return event
