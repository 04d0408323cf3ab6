"""The score-function estimator (REINFORCE): how scores learn from choices that have no derivative.

`surrogate` turns choices and their rewards into a loss term, for a loop of one's own. `ScoreFunction` does the same
inside `regard train`, where the reward is the negative loss of each example.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.core.arguments import described, finite_number, float_tensor
from regard.errors import BadType, BadValue
from regard.nn import loss_terms


@dataclass(frozen=True)
class Choice:
    """The key that each query of each head chose, (b,h,q), and its probability. Gradients flow to the scores."""

    index: Tensor  # −1 for a query without visible keys
    log_prob: Tensor  # of the chosen key under the softmax of the scores; 0 for a query without visible keys
    entropy: Tensor  # of that softmax, in nats; 0 for a query without visible keys


class Baseline(nn.Module):
    """A moving average of rewards, used as the baseline of `surrogate`. It is updated in training mode only.

    A call with rewards (b,) returns the average before these rewards, so that the gradient estimate stays unbiased.

    >>> import torch
    >>> baseline = Baseline(decay=0.9)
    >>> baseline(torch.tensor([1.0, 3.0])), baseline(torch.tensor([0.0]))
    (tensor(0.), tensor(0.2000))
    """

    average: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = finite_number("decay", decay)
        if not 0 <= self.decay < 1:
            raise BadValue(f"decay: expected a number from 0 to below 1, got {decay}.")
        self.register_buffer("average", torch.zeros(()))

    @torch.no_grad()
    def forward(self, reward: Tensor) -> Tensor:
        """Return the average, then update it with these rewards."""
        before = self.average.clone()
        if self.training and reward.numel():
            moved = before.lerp(reward.mean().to(before), 1 - self.decay)
            self.average.copy_(
                torch.where(moved.isfinite(), moved, before)
            )  # a non-finite reward would never leave the average
        return before

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


def surrogate(
    choice: Choice, reward: Tensor, baseline: float | Tensor | Baseline = 0.0, entropy_weight: float = 0.0
) -> Tensor:
    """Return a term to add to a loss, whose gradient is the score-function estimate of that of −E[reward].

        −mean over b of (reward − baseline) · Σ log_prob  −  entropy_weight · mean entropy

    The mean of the entropy is over queries with a choice. `baseline` is a number, a tensor that broadcasts to (b,), or
    a `Baseline`, which this call updates when it is in training mode.
    """
    batch = choice.log_prob.shape[0]
    if float_tensor("reward", reward).shape != (batch,):
        raise BadValue(
            f"reward: expected one number for each batch entry, ({batch},), got {tuple(reward.shape)}."
        )
    if not isinstance(baseline, (int, float, Tensor, Baseline)) or isinstance(baseline, bool):
        raise BadType(f"baseline: expected a number, a tensor or a Baseline, got {described(baseline)}.")
    expected = baseline(reward.detach()) if isinstance(baseline, Baseline) else baseline
    advantage = (reward - expected).detach().to(choice.log_prob.dtype)
    if advantage.shape != (batch,):
        raise BadValue(
            f"baseline: expected a shape that broadcasts to ({batch},), got {described(expected)}."
        )
    gain = (advantage * choice.log_prob.sum((1, 2))).sum() / max(1, batch)
    entropy = choice.entropy.sum() / (choice.index >= 0).sum().clamp(min=1)
    return -gain - finite_number("entropy_weight", entropy_weight) * entropy


class ScoreFunction(nn.Module):
    """The loss term of one layer's choices in a training step, with the step's losses as negative rewards.

    For an example with the loss L (a sum over the n targets that count) and the choices c, the term is

        (L − n·b) · Σ log p(c)  −  n · entropy_weight · mean entropy

    where b is the moving average of the loss per target over earlier steps. The term is a sum over examples, as L is,
    so a batch may be split in any way. Where losses are only known for the whole batch, all choices share that loss.
    """

    def __init__(self, entropy_weight: float = 0.0, decay: float = 0.9) -> None:
        super().__init__()
        self.entropy_weight = finite_number("entropy_weight", entropy_weight)
        self.baseline = Baseline(decay)

    def offer(self, choice: Choice) -> None:
        """Offer the term of these choices to the training step that is running; without one, do nothing."""
        made = (choice.index >= 0).sum((1, 2)).clamp(min=1)
        log_prob, entropy = choice.log_prob.sum((1, 2)), choice.entropy.sum((1, 2)) / made
        average = self.baseline.average  # of rewards: the negative baseline of losses

        def term(losses: Tensor, counts: Tensor) -> Tensor:
            together = losses.shape != log_prob.shape
            chance = log_prob.sum()[None] if together else log_prob
            spread = entropy.mean()[None] if together else entropy
            if together:
                losses, counts = losses.sum()[None], counts.sum()[None]
            advantage = losses + counts * average
            return ((advantage * chance) - self.entropy_weight * counts * spread).sum()

        loss_terms.offer(term)

    def observe_loss(self, mean: Tensor) -> None:
        """Update the baseline with the mean loss of a step."""
        self.baseline(-mean.detach().reshape(1))

    def extra_repr(self) -> str:
        return f"entropy_weight={self.entropy_weight}"
