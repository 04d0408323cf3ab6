"""Steps that several processes take together: the model replicated (DDP), sharded (FSDP), or with sequences shared.

A step's gradient is Σ ∇sum / Σ count over the batches of all processes, as for one large batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.nn.fast_path import Loss
from regard_workbench import models
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.engines import sharding
from regard_workbench.training.engines.context import SharedContext
from regard_workbench.training.engines.eager import EagerEngine
from regard_workbench.training.engines.engine import PendingStep, StepResult
from regard_workbench.training.engines.step import Step, Terms
from regard_workbench.training.state import RandomState


class SharedStep(Step):
    """A step of all processes: each has batches of its own, or its own positions of a batch."""

    def __init__(self, *arguments: Any, accumulate: int, context: SharedContext | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.accumulate, self.context = accumulate, context

    def _losses(self, batch: Batch, seed: Tensor | None) -> tuple[Loss, Terms]:
        with nullcontext(batch) if self.context is None else self.context.share(batch) as positions:
            return super()._losses(positions, seed)

    def _gradients_of(self, number: int) -> AbstractContextManager[Any]:
        """Reduce the gradients of several processes only once, with the last batch."""
        return nullcontext() if number == self.accumulate - 1 else self._alone()

    def _alone(self) -> AbstractContextManager[Any]:
        """The context in which a process keeps its gradients to itself."""
        waiting: AbstractContextManager[Any] = self.accelerator.no_sync(self.called)
        return waiting


class ShardedStep(SharedStep):
    """A step of all processes, each of which has a shard of every weight and of its gradient."""

    def _outputs(self, batch: Batch) -> Any:
        with self.accelerator.autocast():  # a sharded model is not wrapped by Accelerate
            return self.called(batch)

    def _alone(self) -> AbstractContextManager[Any]:
        return sharding.no_sync(self.model)

    def _scale(self, factor: Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                grad = sharding.local_shard(parameter.grad)
                grad.mul_(factor.to(grad))

    def _norm(self) -> Tensor:
        return sharding.full_tensor(super()._norm())


class ReplicatedEngine(EagerEngine):
    """Every process has the whole model; DDP adds up their gradients."""

    step_class: type[SharedStep] = SharedStep

    def _wrapped(self) -> nn.Module:
        ranks, processes, device = self.config.context_parallel, self.hardware.processes, self.hardware.device
        self.context = SharedContext(ranks, processes.count, device, self.model) if ranks > 1 else None
        wrapped = self._distributed()
        return torch.compile(wrapped) if self.config.compile else wrapped  # type: ignore[return-value]

    def _distributed(self) -> nn.Module:
        return super()._wrapped()

    def _step(self, wrapped: nn.Module) -> Step:
        return self.step_class(
            self.hardware,
            self.model,
            self.optimizer,
            self.config.optim,
            wrapped=wrapped,
            accumulate=self.config.accumulate or 1,
            context=self.context,
        )

    def begin(self, separate_batch: Callable[[], Batch]) -> None:
        """Let DDP choose its buckets by a backward pass for a batch, of which nothing is kept. A collective.

        DDP lays them out anew after the first backward pass of a process, in the order in which the gradients came. A
        sum of three numbers or more depends in its last bits on where it stands in a bucket, so the first step after a
        resume would differ from the same step of a run that was never interrupted.
        """
        random = RandomState.now(self.hardware.device.type)
        buffers = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        loss, terms = self.plain_step.losses(self.hardware.to_device(separate_batch()), None)
        self.hardware.accelerator.backward(loss.total if terms is None else loss.total + terms)
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])
        self.model.zero_grad(set_to_none=True)
        random.restore()

    @contextmanager
    def evaluated(self) -> Iterator[models.Model]:
        """The model with the weights to validate, and with the buffers of rank 0."""
        self._sync_buffers()
        with super().evaluated() as model:
            yield model

    def _sync_buffers(self) -> None:
        """Copy the buffers of rank 0, which are the ones saved; they differ because each rank sees other batches."""
        names = set(self.buffers.names)
        self.hardware.processes.broadcast([buffer for name, buffer in self.model.named_buffers() if name in names])

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return sharding.gather_tensors(tensors, keep=self.hardware.processes.is_main)


class ShardedEngine(ReplicatedEngine):
    """Every process has a shard of each weight, of its gradient and of its optimiser state (FSDP)."""

    step_class = ShardedStep

    def _distributed(self) -> nn.Module:
        mixed = self.config.precision == "bf16-mixed"
        sharding.shard(self.model, self.hardware.device, self.hardware.processes.count, mixed=mixed)
        return self.model

    def _step(self, wrapped: nn.Module) -> Step:
        step = super()._step(wrapped)
        if step.observers:
            raise BadValue(
                "strategy: fsdp frees the weights of a layer before the loss terms that it offers are differentiated "
                "(attention=hard with estimator=reinforce). Use --strategy ddp."
            )
        return step

    def begin(self, separate_batch: Callable[[], Batch]) -> None:
        """Nothing has to be prepared."""

    def step(self, batches: Iterable[Batch], rate: float, number: int) -> StepResult | PendingStep:
        """Take one step of all processes; DDP copies buffers itself."""
        self._sync_buffers()
        return super().step(batches, rate, number)

    @contextmanager
    def evaluated(self) -> Iterator[models.Model]:
        """The model with all weights gathered in every process."""
        with super().evaluated() as model, sharding.gathered(model):
            yield model

    def _placed(self, tensor: Tensor, like: Tensor) -> Tensor:
        return sharding.shard_like(tensor, like)
