"""A whole step as one CUDA graph: on a GPU, where every batch has the same shape, Python's part of the time is gone.

The first steps run as usual, on a side stream, as capturing asks for; they are real steps. Once one shape of batches is
the usual one, the step is recorded for it and replayed; a batch of another shape, such as an epoch's last one, runs as
usual. Where no shape is usual, as with texts of different lengths, nothing is recorded. An update that must not happen
because the loss is no number is left out on the device itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.tasks.problem import Batch
from regard.training.config import Config
from regard.training.hardware import Hardware
from regard.training.step import Step, Taken

WARMUP = 3  # usual steps of a shape before the recording
PATIENCE = 12  # so many batches without a usual shape: there is none


def refusal(config: Config, hardware: Hardware) -> str:
    """Why a step cannot be recorded here; empty if it can be tried."""
    if not config.graph:
        return "graph is switched off"
    if hardware.device.type != "cuda":
        return "there is no GPU in this run"
    if config.accumulate != 1:
        return "a step is made of several batches"
    if not hardware.alone:
        return "several processes share the run"
    if hardware.accelerator.scaler is not None:
        return "16-mixed scales its loss"
    if config.compile:
        return "the model is compiled"
    if config.optim.optimizer == "rmsprop":
        return "rmsprop cannot leave out an update on the device"
    return ""


class GraphedStep:
    """`Step`, recorded once a shape of batches has come a few times. Other shapes, and what fails, run as usual."""

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer, tell: Callable[[str], None]) -> None:
        self.step, self.optimizer, self.tell = step, optimizer, tell
        self.usual = False
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.stream: torch.cuda.Stream | None = None
        self.recorded: tuple[Any, ...] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: Batch | None = None
        self.found: Tensor | None = None
        self.guard: Tensor | None = None

    def __call__(self, batches: Iterable[Batch]) -> Taken:
        """Take one step."""
        (batch,) = batches
        if self.usual:
            return self.step([batch])
        shape = layout(batch)
        self.seen[shape] += 1
        if self.recorded is None and self.seen[shape] > max(WARMUP, self.seen.total() // 2):
            try:
                self._record(batch)
                self.recorded = shape
            except RuntimeError as trouble:
                self._give_up(str(trouble).splitlines()[0])
        if shape == self.recorded:
            return self._replay(batch)
        if self.recorded is not None:
            return self.step([batch])
        if not self.usual and self.seen.total() > PATIENCE:
            self._give_up("batches differ in shape")
        return self.step([batch]) if self.usual else self._aside(batch)

    def _give_up(self, why: str) -> None:
        self.usual, self.graph = True, None
        self.optimizer.found_inf = None  # type: ignore[attr-defined]
        self.optimizer.zero_grad(set_to_none=True)
        self.tell(f"No CUDA graph: {why}. Steps run one kernel at a time.")

    def _aside(self, batch: Batch) -> Taken:
        # One stream for all: the allocator keeps separate memory for each.
        self.stream = stream = self.stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            taken = self.step([batch])
        torch.cuda.current_stream().wait_stream(stream)
        return taken

    def _record(self, batch: Batch) -> None:
        inputs = _mapped(batch, torch.clone)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step = self.step
            total, count = step.task.loss(step.model(inputs), inputs, step.smoothing)
            loss = total / count.detach().clamp(min=1.0)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(step.parameters, step.limit)
            sound = loss.detach().isfinite() & norm.isfinite()
            # The fused AdamW leaves weights and memory alone where this is not 0, as it does for loss scaling.
            self.guard = (~sound).float()  # kept: the graph reads it at this address
            self.optimizer.found_inf = self.guard  # type: ignore[attr-defined]
            self.optimizer.step()
            found = torch.stack([loss.detach().double(), norm.double()])
        self.optimizer.found_inf = None  # type: ignore[attr-defined]
        self.graph, self.inputs, self.found = graph, inputs, found

    def _replay(self, batch: Batch) -> Taken:
        assert self.graph is not None and self.inputs is not None and self.found is not None
        for name, tensor in batch.tensors().items():
            getattr(self.inputs, name).copy_(tensor, non_blocking=True)
        self.graph.replay()
        loss, norm = self.found.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.step._check(loss, norm, [self.found[0]], [batch.index])
        return Taken(loss, norm)


def layout(batch: Batch) -> tuple[Any, ...]:
    """What must be the same in every batch of a graph."""
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.tensors().items())


def _mapped(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    changed: dict[str, Any] = {name: change(tensor) for name, tensor in batch.tensors().items()}
    return replace(batch, **changed)
