"""One optimiser step, from any number of batches, exact for batches of different sizes.

The loss of a batch is a sum and a count. The gradient of a step is Σ ∇sum / Σ count over all its batches: that of one
big batch. The counts are known only at the end, so each sum is divided by the count of the first batch, which keeps
numbers in range, and the gradient is multiplied once by first / Σ count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from regard.errors import RegardError
from regard.tasks.batch import Batch
from regard.training.distributed.sharding import here, unshared, whole

if TYPE_CHECKING:  # its kernels are for a GPU
    from regard.training.cuda_graph.fused_update import Update


class NonFinite(RegardError, ArithmeticError):
    """The loss or its gradient is no number; the weights are as they were before."""


@dataclass(frozen=True)
class Taken:
    """What a step found out."""

    loss: float
    norm: float
    ready: ClassVar[bool] = True  # there is nothing to wait for, as there is with a `Flight`

    def landed(self) -> Taken:
        """Itself."""
        return self


class Step:
    """Forward, backward, clip, update."""

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        optimizer: Any,
        loss: Callable[[Any, Batch, float], tuple[Tensor, Tensor]],
        *,
        accumulate: int = 1,
        clip: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        self.accelerator, self.model, self.optimizer, self.loss = accelerator, model, optimizer, loss
        self.accumulate, self.smoothing = accumulate, smoothing
        self.limit = clip or math.inf
        self.processes = accelerator.num_processes
        # Accelerate's own knows loss scaling; where there is none, torch's is quicker.
        plain = accelerator.scaler is None
        self._clip = torch.nn.utils.clip_grad_norm_ if plain else accelerator.clip_grad_norm_
        self.sharded = isinstance(model, FSDPModule)
        # A shared model is not wrapped by Accelerate, which else enters autocast.
        self.surrounding = accelerator.autocast if self.sharded else nullcontext
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # A compiled model is compiled once more together with its loss, which is as many small kernels as a layer.
        inner = getattr(model, "_orig_mod", None)
        self.forward = self._forward
        if inner is not None and self.processes == 1:
            self.model = inner
            self.forward = torch.compile(self._forward)
        self.update: Update | None = (
            None  # takes the place of clipping and optimiser, where a graph may be recorded
        )

    def __call__(self, batches: Iterable[Batch]) -> Taken:
        """Take one step; `NonFinite` before anything is changed if the loss or the gradient is no number."""
        if self.update is not None:
            (batch,) = batches
            return self._on_device(batch, self.update)
        self.optimizer.zero_grad(set_to_none=True)
        sums: list[Tensor] = []
        counts: list[Tensor] = []
        seen: list[tuple[int, ...]] = []
        first: Tensor | None = None
        for number, batch in enumerate(batches):
            with self._unshared(number):
                total, count = self.forward(batch)
                count = count.detach()
                if first is None:
                    mean = count if self.processes == 1 else self.accelerator.reduce(count, "mean")
                    first = mean.clamp(min=1.0)
                self.accelerator.backward(total / first)
            sums.append(total.detach())
            counts.append(count)
            seen.append(batch.index)
        assert first is not None
        total, count = torch.stack(sums).double().sum(), torch.stack(counts).double().sum()
        if self.processes > 1:
            total, count = self.accelerator.reduce(torch.stack([total, count]), "sum")
        if len(sums) > 1 or self.processes > 1:
            # Gradients of several processes arrive as their mean.
            self._scale(first * self.processes / count.clamp(min=1.0))
        norm = whole(self._clip(self.parameters, self.limit))
        loss_value, norm_value = torch.stack([total / count.clamp(min=1.0), norm.double()]).tolist()
        self._check(loss_value, norm_value, sums, seen)
        self.optimizer.step()
        return Taken(loss_value, norm_value)

    def backward(self, batch: Batch) -> Tensor:
        """The mean loss of one batch; its gradient lies in the parameters."""
        total, count = self.forward(batch)
        loss = total / count.detach().clamp(min=1.0)
        loss.backward()
        return loss.detach()

    def _on_device(self, batch: Batch, update: Update) -> Taken:
        """A step whose update is left out on the device itself where it must not happen."""
        self.optimizer.zero_grad(set_to_none=True)
        update.ready()
        loss = self.backward(batch)
        update.write(update.loose)
        loss_value, norm_value, _ = update(loss, update.loose).tolist()
        self._check(loss_value, norm_value, [loss], [batch.index])
        return Taken(loss_value, norm_value)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with self.surrounding():
            outputs = self.model(batch)
        return self.loss(outputs, batch, self.smoothing)

    def _unshared(self, number: int) -> Any:
        """Gradients of several processes are brought together once, with the last batch."""
        if self.processes == 1 or number == self.accumulate - 1:
            return nullcontext()
        return unshared(self.model) if self.sharded else self.accelerator.no_sync(self.model)

    def _scale(self, factor: Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                grad = here(parameter.grad)
                grad.mul_(factor.to(grad))

    def _check(self, loss: float, norm: float, sums: list[Tensor], seen: list[tuple[int, ...]]) -> None:
        if math.isfinite(loss) and (math.isfinite(norm) or self.accelerator.scaler is not None):
            return  # with loss scaling an infinite gradient is part of finding the scale; the update is left out
        self.optimizer.zero_grad(set_to_none=True)
        batches = [(bool(total.isfinite()), index) for total, index in zip(sums, seen, strict=True)]
        if self.processes > 1:  # all of them are here: they found the same loss and norm
            batches = gather_object(batches)
        spoilt = [index for finite, index in batches if not finite] or [index for _, index in batches]
        examples = [example for index in spoilt for example in index]
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the norm of the gradient is {norm}"
        raise NonFinite(f"{what} for the batch of training examples {examples}")
