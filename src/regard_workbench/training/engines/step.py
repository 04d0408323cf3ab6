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
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard.errors import BadValue
from regard.nn.fast_path import Loss
from regard.nn.parts import loss_terms
from regard_workbench.models import Model
from regard_workbench.tasks.answers.answer import counted
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.config import Optim
from regard_workbench.training.engines.engine import NonFinite, StepResult
from regard_workbench.training.hardware import Hardware

if TYPE_CHECKING:
    from regard_workbench.training.averaging import AveragedWeights

Terms = Tensor | None  # the sum of the loss terms, if there are any


class Step:
    """Forward, backward, clip, update."""

    def __init__(
        self,
        hardware: Hardware,
        model: Model,
        optimizer: Optimizer,
        settings: Optim = Optim(),  # noqa: B008 (it is frozen)
        *,
        wrapped: nn.Module | None = None,
        compiled: bool = False,
    ) -> None:
        """`wrapped`: what is called for the outputs of the model, if not the model itself (DDP, for instance)."""
        accelerator = self.accelerator = hardware.accelerator
        self.processes = hardware.processes
        self.model, self.called = model, model if wrapped is None else wrapped
        self.smoothing, self.consistency = settings.smoothing or 0.0, settings.consistency
        self.limit = settings.clip or math.inf
        # Accelerate's wrapper and clipping are needed for loss scaling only, and take time in each step.
        self.optimizer: Any = optimizer if accelerator.scaler is None else accelerator.prepare(optimizer)
        self._clip = nn.utils.clip_grad_norm_ if accelerator.scaler is None else accelerator.clip_grad_norm_
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.observers = [module for module in model.modules() if isinstance(module, loss_terms.LearnsFromLoss)]
        if accelerator.mixed_precision == "bf16":  # Accelerate has wrapped `forward` in the same
            model.autocast = partial(torch.autocast, accelerator.device.type, dtype=torch.bfloat16)
        # The model is compiled together with its loss, which has as many small kernels as a layer.
        self.losses = torch.compile(self._losses) if compiled else self._losses
        # Whether the outputs of the model serve nothing but its loss, so that a fast path may leave them out. Several
        # processes call the model itself, because DDP and FSDP work there.
        self.loss_alone = self.processes.single and not (self.observers or self.consistency)
        self.seed: int | None = None  # of dropout in the next step, for a fast path that takes one
        self.average: AveragedWeights | None = None  # follows the weights after each update

    def __call__(self, batches: Iterable[Batch]) -> StepResult:
        """Take one step; raise `NonFinite`, with the weights unchanged, if the loss or the gradient is non-finite."""
        self.optimizer.zero_grad(set_to_none=True)
        sums: list[Tensor] = []
        counts: list[Tensor] = []
        indices: list[tuple[int, ...]] = []
        first: Tensor | None = None
        for number, batch in enumerate(batches):
            with self._gradients_of(number):
                loss, terms = self.losses(batch, self._seed_for(batch, number))
                count = loss.count.detach()
                if first is None:
                    first = self.processes.mean(count).clamp(min=1.0)
                self.accelerator.backward((loss.total if terms is None else loss.total + terms) / first)
            sums.append(loss.total.detach())
            counts.append(count)
            indices.append(batch.index)
        assert first is not None
        both = torch.stack([torch.stack(sums).double().sum(), torch.stack(counts).double().sum()])
        total, count = self.processes.sum(both)
        mean = total / count.clamp(min=1.0)
        if len(sums) > 1 or not self.processes.single:
            # DDP and FSDP average the gradients of all processes.
            self._scale(first * self.processes.count / count.clamp(min=1.0))
        self._observe(mean)
        norm = self._norm()
        loss_value, norm_value = torch.stack([mean, norm.double()]).tolist()
        self._check(loss_value, norm_value, sums, indices)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return StepResult(loss_value, norm_value)

    def _losses(self, batch: Batch, seed: Tensor | None) -> tuple[Loss, Terms]:
        """The loss of a batch on the device, and what modules and `consistency` add to its sum."""
        if self.loss_alone:
            return self.model.loss_of(batch, self.smoothing, seed), None
        if self.consistency:
            batch = batch.times(2)
        offered: list[loss_terms.LossTerm] = []
        with loss_terms.collecting() if self.observers else nullcontext(offered) as offered:
            outputs = self._outputs(batch)
        terms = []
        if offered:
            losses, counts = self.model.example_losses(outputs, batch, self.smoothing)
            terms = [term(losses.detach(), counts.detach()) for term in offered]
        if self.consistency:
            terms.append(self.consistency * self._divergence(outputs, batch))
        loss = Loss(*self.model.loss(outputs, batch, self.smoothing))
        return loss, torch.stack(terms).sum() if terms else None

    def _outputs(self, batch: Batch) -> Any:
        return self.called(batch)

    def _divergence(self, outputs: Any, batch: Batch) -> Tensor:
        """KL(p ‖ q) + KL(q ‖ p), summed over what counts, of the answers p of one pass and q of the other."""
        log_probabilities = self.model.problem.answer.log_probabilities(outputs)
        if log_probabilities is None:
            raise BadValue(
                "optim.consistency: only answers that are one of several classes, or texts, can be compared between "
                "two passes. Leave it out."
            )
        first, second = log_probabilities.chunk(2)
        divergence = ((first.exp() - second.exp()) * (first - second)).sum(-1)
        keep = batch.target_keep
        return counted(divergence, None if keep is None else keep[: len(divergence)])[0]

    def _seed_for(self, batch: Batch, number: int) -> Tensor | None:
        """The seed of one of the batches of a step, on the device."""
        if self.seed is None or not self.loss_alone:
            return None
        return torch.tensor([self.seed + number], device=batch.device)

    def _observe(self, mean: Tensor) -> None:
        """Tell modules that offer loss terms the mean loss of the step."""
        for module in self.observers:
            module.observe_loss(mean)

    def _gradients_of(self, number: int) -> AbstractContextManager[Any]:
        """The context of forward and backward of one of the batches."""
        return nullcontext()

    def _scale(self, factor: Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad))

    def _norm(self) -> Tensor:
        """The norm of the gradient, which is clipped."""
        norm: Tensor = self._clip(self.parameters, self.limit)
        return norm

    def _check(self, loss: float, norm: float, sums: list[Tensor], indices: list[tuple[int, ...]]) -> None:
        if math.isfinite(loss) and (math.isfinite(norm) or self.accelerator.scaler is not None):
            return  # with loss scaling, an infinite gradient lowers the scale, and the update is skipped
        self.optimizer.zero_grad(set_to_none=True)
        mine = [(bool(total.isfinite()), index) for total, index in zip(sums, indices, strict=True)]
        batches = list(chain.from_iterable(self.processes.gather(mine)))  # all processes raise: they have the same loss
        non_finite = [index for finite, index in batches if not finite] or [index for _, index in batches]
        examples = [example for index in non_finite for example in index]
        problem = f"the loss is {loss}" if not math.isfinite(loss) else f"the norm of the gradient is {norm}"
        raise NonFinite(f"{problem} for the batch of training examples {examples}")
