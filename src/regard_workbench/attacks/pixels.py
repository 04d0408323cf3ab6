"""Attacks on pictures by gradients: one step (fgsm) or many with a projection after each (pgd).

Both need only a function from pictures to losses, so they attack any network, and both stay in their `Ball`.

    fgsm   x' = P(x + ε·d(∇L(x)))                                Goodfellow et al. 2015
    pgd    x_{t+1} = P(x_t + α·d(∇L(x_t))), x_0 in the ball      Madry et al. 2018

P projects on the ball; d is the sign of the gradient (linf) or the gradient divided by its length (l2).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard_workbench.attacks.ball import Ball

Losses = Callable[[Tensor], Tensor]  # pictures (b, …) → the loss of each, (b,)


def slope(losses: Losses, points: Tensor) -> Tensor:
    """The gradient of each example's loss with respect to its pixels."""
    points = points.detach().requires_grad_()
    # cuDNN has a backward pass of recurrent layers only in training mode, which would also apply dropout.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        (gradient,) = torch.autograd.grad(losses(points).sum(), points)
    return gradient


def fgsm(losses: Losses, ball: Ball) -> Tensor:
    """One step of the whole radius from the pictures themselves."""
    return ball.project(ball.centre + ball.radius * ball.ascent(slope(losses, ball.centre)))


def pgd(losses: Losses, ball: Ball, steps: int, step_size: float, start: Tensor | None = None) -> Tensor:
    """The last of `steps` projected steps from `start`; None: from the pictures themselves."""
    points = ball.centre if start is None else start
    for _ in range(steps):
        points = ball.project(points + step_size * ball.ascent(slope(losses, points)))
    return points.detach()
