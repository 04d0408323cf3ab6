"""Steps as CUDA graphs on one GPU: launched without waiting for their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from regard_workbench import models
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.build import Parts
from regard_workbench.training.config import Config
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep
from regard_workbench.training.engines.cuda_graph.graphed_step import STEPS_PER_GRAPH, GraphedStep
from regard_workbench.training.engines.eager import EagerEngine
from regard_workbench.training.engines.engine import MAX_PENDING, PendingStep, Snapshot, StepResult
from regard_workbench.training.hardware import Hardware
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.state import RandomState


class CapturedEngine(EagerEngine):
    """An engine that captures its steps. `GraphedStep` says which."""

    captured = True
    plain_step: CapturableStep

    def __init__(self, config: Config, hardware: Hardware, parts: Parts, tell: Callable[[str], None]) -> None:
        super().__init__(config, hardware, parts, tell)
        self.graphed_step = GraphedStep(self.plain_step, self.optimizer, tell, MAX_PENDING, hardware.to_device)
        if not self._ungrouped():
            self.graphed_step.steps_per_graph = STEPS_PER_GRAPH
        self._random: RandomState | None = None  # as last read, …
        self._drawn = 0  # … after captured steps had drawn so many random numbers

    def _step(self, wrapped: nn.Module) -> CapturableStep:
        settings, compiled = self.config.optim, self.config.compile
        return CapturableStep(self.hardware, self.model, self.optimizer, settings, wrapped=wrapped, compiled=compiled)

    def _ungrouped(self) -> str:
        """Why each captured step is launched on its own; empty if several may be one graph."""
        if STEPS_PER_GRAPH == 1:
            return f"groups are switched off (STEPS_PER_GRAPH of {GraphedStep.__module__})"
        if self.buffers.names:
            return "snapshots read the model's buffers before each step"
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            return "several steps with cuDNN's recurrent layers in one graph crashed; mended, but hardly tried since"
        return ""

    def load(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        super().load(checkpoint)
        if self.plain_step.update is not None:
            self.plain_step.update.refresh()  # before a graph is captured, which would read the weights themselves

    def step(self, batches: Iterable[Batch], rate: float, number: int) -> StepResult | PendingStep:
        """Launch a step, or take it; the rate and the seed of a captured one reach the device beside the batch."""
        self.graphed_step.rate = rate
        self._number(number)
        return self.graphed_step(batches)

    def snapshot(self) -> Snapshot:
        """Copy what a forward pass changes besides gradients: random states and buffers."""
        step = self.graphed_step
        # A replay draws no random numbers on the host, and a known number of them on the device; whoever makes a batch
        # draws from a generator of its own, unless the model acts.
        if self._random is None or self.acts or not step.replayed:
            self._random, self._drawn = RandomState.now(self.hardware.device.type), step.drawn
        return Snapshot(self._random, step.drawn - self._drawn, self.buffers.now())

    @contextmanager
    def evaluated(self) -> Iterator[models.Model]:
        """The model with the weights to validate."""
        self._random = None  # a call of the model may draw random numbers
        with super().evaluated() as model:
            yield model
