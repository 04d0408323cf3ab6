"""A step of one batch that a CUDA graph can hold: the host reads nothing in it, and a fused update may end it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.nn.fast_path import Loss
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.engines.engine import StepResult
from regard_workbench.training.engines.step import Step, Terms

if TYPE_CHECKING:  # it imports Triton
    from regard_workbench.training.engines.cuda_graph.fused_update import FusedUpdate


class CapturableStep(Step):
    """`Step` for one batch, in pieces that a graph is captured from. Called, it runs one kernel after the other."""

    def __init__(self, *arguments: Any, compiled: bool = False, **options: Any) -> None:
        super().__init__(*arguments, compiled=compiled, **options)
        self.means = torch.compile(self._means) if compiled else self._means
        self.one: Tensor | None = None  # the gradient of the objective: made once, not filled in each step
        self.update: FusedUpdate | None = None  # replaces clipping and optimiser

    def __call__(self, batches: Iterable[Batch]) -> StepResult:
        """Take one step. A fused update skips itself on the device if the loss or the gradient is non-finite."""
        update = self.update
        if update is None:
            return super().__call__(batches)
        (batch,) = batches
        self.optimizer.zero_grad(set_to_none=True)
        update.ready()
        loss = self.backward(batch, self._seed_for(batch, 0))
        update.write(update.eager_table)
        loss_value, norm_value, _ = update(loss, update.eager_table).tolist()
        self._check(loss_value, norm_value, [loss], [batch.index])
        if self.average is not None:
            self.average.update()
        return StepResult(loss_value, norm_value)

    def backward(self, batch: Batch, seed: Tensor | None = None) -> Tensor:
        """The mean loss of a batch, with its gradient computed. `seed`: of dropout, as in `Model.loss_of`."""
        # With a fused update every step comes here, eager ones, too, so that the divisions can be compiled as well.
        # Without, the first steps compile `losses`, and nothing can be compiled while a graph is captured.
        divided = self.update is not None
        loss, objective = self.means(batch, seed) if divided else self._divided(*self.losses(batch, seed))
        if self.one is None or (self.one.dtype, self.one.device) != (objective.dtype, objective.device):
            self.one = torch.ones_like(objective)
        objective.backward(self.one)
        self._observe(loss)
        return loss.detach()

    def _means(self, batch: Batch, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._divided(*self._losses(batch, seed))

    def _divided(self, loss: Loss, terms: Terms) -> tuple[Tensor, Tensor]:
        """The mean loss, and the same with the loss terms."""
        mean = loss.mean
        return mean, mean if terms is None else mean + terms / loss.count.detach().clamp(min=1.0)
