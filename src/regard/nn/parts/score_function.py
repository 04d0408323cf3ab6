"""The score-function estimator (REINFORCE): how scores learn from choices that have no derivative.

`surrogate` turns choices and their rewards into a loss term, for a loop of one's own. `ScoreFunction` does the same
inside `regard train`, where the reward is the negative loss of each example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import BadType, BadValue
from regard.nn.parts import loss_terms
from regard.support.arguments import described, finite_number, float_tensor


@dataclass(frozen=True)
class Choice:
    """The key that each query of each head chose, (b,h,q), and its probability. Gradients flow to the scores."""

    index: Tensor  # −1 for a query without visible keys
    log_prob: Tensor  # of the chosen key under the softmax of the scores; 0 for a query without visible keys
    entropy: Tensor  # of that softmax, in nats; 0 for a query without visible keys

    def without(self, dropped: Tensor) -> Choice:
        """These choices, less those at `dropped` (b,h,q): as if their queries had chosen nothing."""
        kept = (self.log_prob.masked_fill(dropped, 0), self.entropy.masked_fill(dropped, 0))
        return Choice(self.index.masked_fill(dropped, -1), *kept)


@dataclass(frozen=True)
class Drawn:
    """Choices whose scores were written out; what a loss term needs of many of them is computed for all at once."""

    logs: Tensor  # (b,h,q,k): log-probabilities of all keys
    index: Tensor  # (b,h,q,1)
    soft: Tensor | None = None  # (b,h,q,1): True for a query that received the mean in place of its choice

    def choice(self) -> Choice:
        """The same as a `Choice`."""
        index, log_prob = self.index[..., 0], self.logs.gather(-1, self.index)[..., 0]
        entropy = -(self.logs.exp() * self.logs).sum(-1)
        choice = Choice(index, log_prob, entropy)
        return choice if self.soft is None else choice.without(self.soft[..., 0])


def joined(made: Sequence[Choice | Drawn]) -> Choice:
    """The choices of several calls, one after the other along the queries, as those of one call."""
    drawn = [choice for choice in made if isinstance(choice, Drawn)]
    if len(drawn) < len(made):
        every = [choice if isinstance(choice, Choice) else choice.choice() for choice in made]
        columns = zip(*((choice.index, choice.log_prob, choice.entropy) for choice in every), strict=True)
        return Choice(*(torch.cat(column, 2) for column in columns))
    soft = [draw.soft for draw in drawn if draw.soft is not None]
    logs, index = torch.cat([draw.logs for draw in drawn], 2), torch.cat([draw.index for draw in drawn], 2)
    return Drawn(logs, index, torch.cat(soft, 2) if soft else None).choice()


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
        raise BadValue(f"reward: expected one number for each batch entry, ({batch},), got {tuple(reward.shape)}.")
    if not isinstance(baseline, (int, float, Tensor, Baseline)) or isinstance(baseline, bool):
        raise BadType(f"baseline: expected a number, a tensor or a Baseline, got {described(baseline)}.")
    expected = baseline(reward.detach()) if isinstance(baseline, Baseline) else baseline
    advantage = (reward - expected).detach().to(choice.log_prob.dtype)
    if advantage.shape != (batch,):
        raise BadValue(f"baseline: expected a shape that broadcasts to ({batch},), got {described(expected)}.")
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

    def offer(self, made: Choice | Drawn) -> None:
        """Offer the term of these choices to the training step that is running; without one, do nothing."""
        loss_terms.offer(ChoiceTerm(made, self.baseline.average, self.entropy_weight))

    def observe_loss(self, mean: Tensor) -> None:
        """Update the baseline with the mean loss of a step."""
        self.baseline(-mean.detach().reshape(1))

    def extra_repr(self) -> str:
        return f"entropy_weight={self.entropy_weight}"


# Without `eq`: the compiler of torch 2.11 looks for it in a set before its fields are there.
@dataclass(frozen=True, eq=False)
class ChoiceTerm:
    """The term that a `ScoreFunction` offers. A model that judges its choices by something else reads `made`."""

    made: Choice | Drawn
    average: Tensor  # of rewards: the negative baseline of losses
    entropy_weight: float

    def __call__(self, losses: Tensor, counts: Tensor) -> Tensor:
        """The term, for the losses of the examples and how much counts in each: a `LossTerm`."""
        choice = self.made if isinstance(self.made, Choice) else self.made.choice()
        choices = (choice.index >= 0).sum((1, 2)).clamp(min=1)
        chance, spread = choice.log_prob.sum((1, 2)), choice.entropy.sum((1, 2)) / choices
        if losses.shape != chance.shape:
            chance, spread = chance.sum()[None], spread.mean()[None]
            losses, counts = losses.sum()[None], counts.sum()[None]
        advantage = losses + counts * self.average
        return ((advantage * chance) - self.entropy_weight * counts * spread).sum()
