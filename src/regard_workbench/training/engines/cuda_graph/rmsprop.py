"""RMSprop that can skip an update on the device itself, as a step captured in a CUDA graph needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class SkippableRMSprop(torch.optim.RMSprop):
    """torch's RMSprop with momentum, bit for bit; if `found_inf` is 1, nothing changes.

    `found_inf` is a tensor on the device, as in the fused AdamW; None always updates. The learning rate may be a tensor
    on the device too.
    """

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the weights, unless `found_inf` is 1."""
        for group in self.param_groups:
            changing = [p for p in group["params"] if p.grad is not None]
            if changing:
                self._update(group, changing, [p.grad for p in changing])

    def _update(self, group: dict[str, Any], weights: list[Tensor], grads: list[Tensor]) -> None:
        for weight in weights:
            if not self.state[weight]:
                start = {"step": torch.zeros((), device=weight.device)}
                start["square_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
                start["momentum_buffer"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
                self.state[weight] = start
        steps, squares, momenta = (
            [self.state[weight][piece] for weight in weights] for piece in ("step", "square_avg", "momentum_buffer")
        )
        rate, fading, inertia = group["lr"], group["alpha"], group["momentum"]
        going: float | Tensor = 1.0
        if self.found_inf is not None:
            # To skip: factors of 1, and gradients and rate of 0, leave all bits as they are. Products with 0 and 1
            # select between the two cases without the host.
            stop = self.found_inf.to(grads[0].dtype)
            going = 1 - stop
            rate, fading, inertia = rate * going, fading * going + stop, inertia * going + stop
            stopped = stop != 0
            grads = [grad.masked_fill(stopped, 0) for grad in grads]
        if isinstance(going, Tensor):
            torch._foreach_add_(steps, [going] * len(steps))  # as a single tensor it would be copied to the host
        else:
            torch._foreach_add_(steps, going)
        torch._foreach_mul_(squares, fading)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - group["alpha"])
        scale = torch._foreach_sqrt(squares)
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_mul_(momenta, inertia)
        torch._foreach_addcdiv_(momenta, grads, scale)
        torch._foreach_add_(weights, torch._foreach_mul(momenta, -rate))
