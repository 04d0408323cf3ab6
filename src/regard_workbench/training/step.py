"""One optimiser step from any number of batches, exact for batches of different sizes.

The loss of a batch is a sum and a count. The gradient of a step is Σ ∇sum / Σ count over all its batches, as for one
large batch. All counts are known only at the end, so each sum is divided by the count of the first batch, which keeps
numbers in range, and the gradient is multiplied once by first / Σ count.

Modules may add loss terms (`regard.nn.parts.loss_terms`). They are sums over examples, too, so the same holds for them.

With `consistency`, the model reads each batch twice in one pass, and dropout differs between the two. Added to the mean
loss is the mean divergence of the two answers times `consistency`, which is half of the paper's α:

    consistency · ½ (KL(p ‖ q) + KL(q ‖ p))

Both means are over the same targets: examples, or the tokens of texts without their padding.

Paper: Liang et al. 2021 (R-Drop).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from regard.errors import BadValue, RegardError
from regard.nn.fast_path import Loss
from regard.nn.parts import loss_terms
from regard_workbench.models.parts.model import Model
from regard_workbench.tasks.answers.answer import counted
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.distributed.sharding import full_tensor, local_shard, no_sync

if TYPE_CHECKING:  # it imports Triton
    from regard_workbench.training.averaging import AveragedWeights
    from regard_workbench.training.cuda_graph.fused_update import FusedUpdate
    from regard_workbench.training.distributed.context import SharedContext


class NonFinite(RegardError, ArithmeticError):
    """The loss or its gradient is non-finite; the weights were not changed."""


@dataclass(frozen=True)
class StepResult:
    """The loss and the gradient norm of a step."""

    loss: float
    norm: float
    ready: ClassVar[bool] = True  # unlike a `PendingStep`, it never has to be waited for

    def result(self) -> StepResult:
        """Itself, as `PendingStep.result` returns it."""
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
        example_losses: Callable[[Any, Batch, float], tuple[Tensor, Tensor]] | None = None,
        consistency: float = 0.0,
        log_probabilities: Callable[[Any], Tensor | None] | None = None,
        context: SharedContext | None = None,
    ) -> None:
        self.accelerator, self.model, self.optimizer, self.loss = accelerator, model, optimizer, loss
        self.accumulate, self.smoothing, self.example_losses = accumulate, smoothing, example_losses
        self.consistency, self.log_probabilities = consistency, log_probabilities
        self.context = context
        self.limit = clip or math.inf
        self.processes = accelerator.num_processes
        # Accelerate's clipping handles loss scaling; without loss scaling, torch's is faster.
        unscaled = accelerator.scaler is None
        self._clip = torch.nn.utils.clip_grad_norm_ if unscaled else accelerator.clip_grad_norm_
        self.sharded = isinstance(model, FSDPModule)
        # A sharded model is not wrapped by Accelerate, so autocast must be entered here.
        self.autocast = accelerator.autocast if self.sharded else nullcontext
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # Compile the model together with its loss, which has as many small kernels as a layer.
        inner = getattr(model, "_orig_mod", None)
        self.forward, self.means = self._forward, self._means
        if inner is not None and self.processes == 1:
            self.model = inner
            self.forward, self.means = torch.compile(self._forward), torch.compile(self._means)
        self.observers = [one for one in model.modules() if isinstance(one, loss_terms.LearnsFromLoss)]
        if self.observers and self.sharded:
            raise BadValue(
                "strategy: fsdp frees the weights of a layer before the loss terms that it offers are differentiated "
                "(attention=hard with estimator=reinforce). Use --strategy ddp."
            )
        # A model whose outputs serve nothing but its own loss: it may be asked for the loss alone.
        self.alone: Model | None = None
        apart = self.processes > 1 or self.sharded or self.observers or consistency or context
        if isinstance(self.model, Model) and not apart and loss == self.model.loss:
            self.alone = self.model
            if accelerator.mixed_precision == "bf16":  # Accelerate has wrapped `forward` in the same
                self.alone.autocast = partial(torch.autocast, accelerator.device.type, dtype=torch.bfloat16)
        # Of dropout in the next step, for fast paths that take one; None, and for others: torch's generators draw it.
        self.seed: int | None = None
        self.one: Tensor | None = None  # the gradient of the objective: made once, not filled in each step
        self.update: FusedUpdate | None = None  # replaces clipping and optimiser where steps may be captured
        self.average: AveragedWeights | None = None  # follows the weights after each update

    def __call__(self, batches: Iterable[Batch]) -> StepResult:
        """Take one step; raise `NonFinite`, with the weights unchanged, if the loss or the gradient is non-finite."""
        if self.update is not None:
            (batch,) = batches
            return self._fused(batch, self.update)
        self.optimizer.zero_grad(set_to_none=True)
        sums: list[Tensor] = []
        counts: list[Tensor] = []
        seen: list[tuple[int, ...]] = []
        first: Tensor | None = None
        for number, batch in enumerate(batches):
            with self._no_sync(number):
                loss, terms = self.forward(batch, self._seed_for(batch, number))
                total, count = loss.total, loss.count.detach()
                if first is None:
                    mean = count if self.processes == 1 else self.accelerator.reduce(count, "mean")
                    first = mean.clamp(min=1.0)
                self.accelerator.backward((total if terms is None else total + terms) / first)
            sums.append(total.detach())
            counts.append(count)
            seen.append(batch.index)
        assert first is not None
        total, count = torch.stack(sums).double().sum(), torch.stack(counts).double().sum()
        if self.processes > 1:
            total, count = self.accelerator.reduce(torch.stack([total, count]), "sum")
        if len(sums) > 1 or self.processes > 1:
            # DDP and FSDP average the gradients of all processes.
            self._scale(first * self.processes / count.clamp(min=1.0))
        self._observe(total / count.clamp(min=1.0))
        norm = full_tensor(self._clip(self.parameters, self.limit))
        loss_value, norm_value = torch.stack([total / count.clamp(min=1.0), norm.double()]).tolist()
        self._check(loss_value, norm_value, sums, seen)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return StepResult(loss_value, norm_value)

    def backward(self, batch: Batch, seed: Tensor | None = None) -> Tensor:
        """The mean loss of one batch, with its gradient computed. `seed`: of dropout, as in `Model.loss_of`."""
        # With a fused update every step comes here, eager ones, too, so that the divisions can be compiled as well.
        # Without, the first steps compile `forward`, and nothing can be compiled while a graph is captured.
        loss, objective = _mean(*self.forward(batch, seed)) if self.update is None else self.means(batch, seed)
        if self.one is None or (self.one.dtype, self.one.device) != (objective.dtype, objective.device):
            self.one = torch.ones_like(objective)
        objective.backward(self.one)
        self._observe(loss)
        return loss.detach()

    def _means(self, batch: Batch, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean loss of one batch, and the same with the loss terms."""
        return _mean(*self._forward(batch, seed))

    @property
    def takes_seed(self) -> bool:
        """Whether the model may use `seed`."""
        return self.alone is not None

    def _seed_for(self, batch: Batch, number: int = 0) -> Tensor | None:
        """The seed of one of the batches of a step, on the device."""
        if self.seed is None or not self.takes_seed:
            return None
        return torch.tensor([self.seed + number], device=batch.device)

    def _fused(self, batch: Batch, update: FusedUpdate) -> StepResult:
        """A step whose fused update skips itself on the device if the loss or the gradient is non-finite."""
        self.optimizer.zero_grad(set_to_none=True)
        update.ready()
        loss = self.backward(batch, self._seed_for(batch))
        update.write(update.eager_table)
        loss_value, norm_value, _ = update(loss, update.eager_table).tolist()
        self._check(loss_value, norm_value, [loss], [batch.index])
        if self.average is not None:
            self.average.update()
        return StepResult(loss_value, norm_value)

    def _forward(self, batch: Batch, seed: Tensor | None = None) -> tuple[Loss, Tensor | None]:
        """The loss of a batch, and the sum of the loss terms, if there are any."""
        if self.context is None:
            return self._losses(batch, seed)
        with self.context.share(batch) as part:
            return self._losses(part, seed)

    def _losses(self, batch: Batch, seed: Tensor | None) -> tuple[Loss, Tensor | None]:
        if self.alone is not None:
            return self.alone.loss_of(batch, self.smoothing, seed), None
        if self.consistency:
            batch = batch.times(2)
        terms: list[Tensor] = []
        if not self.observers or self.example_losses is None:
            with self.autocast():
                outputs = self.model(batch)
        else:
            with loss_terms.collecting() as offered, self.autocast():
                outputs = self.model(batch)
            losses, counts = self.example_losses(outputs, batch, self.smoothing)
            terms = [term(losses.detach(), counts.detach()) for term in offered]
        if self.consistency:
            terms.append(self.consistency * self._divergence(outputs, batch))
        loss = Loss(*self.loss(outputs, batch, self.smoothing))
        return loss, torch.stack(terms).sum() if terms else None

    def _divergence(self, outputs: Any, batch: Batch) -> Tensor:
        """KL(p ‖ q) + KL(q ‖ p), summed over what counts, of the answers p of one pass and q of the other."""
        found = None if self.log_probabilities is None else self.log_probabilities(outputs)
        if found is None:
            raise BadValue(
                "optim.consistency: only answers that are one of several classes, or texts, can be compared between "
                "two passes. Leave it out."
            )
        one, other = found.chunk(2)
        each = ((one.exp() - other.exp()) * (one - other)).sum(-1)
        keep = batch.target_keep
        return counted(each, None if keep is None else keep[: len(each)])[0]

    def _observe(self, mean: Tensor) -> None:
        """Tell modules that offer loss terms the mean loss of the step."""
        for module in self.observers:
            module.observe_loss(mean)

    def _no_sync(self, number: int) -> Any:
        """Reduce the gradients of several processes only once, with the last batch."""
        if self.processes == 1 or number == self.accumulate - 1:
            return nullcontext()
        return no_sync(self.model) if self.sharded else self.accelerator.no_sync(self.model)

    def _scale(self, factor: Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                grad = local_shard(parameter.grad)
                grad.mul_(factor.to(grad))

    def _check(self, loss: float, norm: float, sums: list[Tensor], seen: list[tuple[int, ...]]) -> None:
        if math.isfinite(loss) and (math.isfinite(norm) or self.accelerator.scaler is not None):
            return  # with loss scaling, an infinite gradient lowers the scale, and the update is skipped
        self.optimizer.zero_grad(set_to_none=True)
        batches = [(bool(total.isfinite()), index) for total, index in zip(sums, seen, strict=True)]
        if self.processes > 1:  # all processes raise: they have the same loss and norm
            batches = gather_object(batches)
        non_finite = [index for finite, index in batches if not finite] or [index for _, index in batches]
        examples = [example for index in non_finite for example in index]
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the norm of the gradient is {norm}"
        raise NonFinite(f"{what} for the batch of training examples {examples}")


def _mean(loss: Loss, terms: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean loss of a batch, and the same with the loss terms."""
    mean = loss.mean
    return mean, mean if terms is None else mean + terms / loss.count.detach().clamp(min=1.0)
