"""An action at each step of an episode, learned from what the actions returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head, counted
from regard_workbench.tasks.parts.batch import Batch

# The answers of a batch of episodes, (b,t) each.
ACTION, CHANCE, ADVANTAGE, RETURN, REWARD = "action", "log_prob", "advantage", "return", "reward"


@dataclass(frozen=True)
class Acts(Answer):
    """One of several actions at each step: logits and the return to expect, (b,n,actions+1).

    The loss of a step is that of proximal policy optimisation: with r = p(a) / p_then(a) and the advantage A,

        −min(r A, clip(r, 1 ± clip) A)  +  value_weight · ((v − return) / scale)²  −  entropy_weight · entropy

    where scale is the largest return so far, at least 1: the advantages are normalised, and a return may be 1 or 500.

    Paper: Schulman et al. 2017, equations 7 and 9.
    """

    actions: int
    limit: int  # the most steps of an episode
    episodes: int = 32  # the most of a rollout, which is learned from several times
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    needs: ClassVar[str] = "past"
    scored: ClassVar[bool] = False
    words: ClassVar[str] = "an action at each step"
    terms: ClassVar[str] = "steps"
    units: ClassVar[str] = "episodes"

    @property
    def outputs(self) -> int:
        """A logit for each action."""
        return self.actions

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> Head:
        return PolicyHead(self, dim)


class PolicyHead(Head):
    """Logits of the actions and the return to expect, from the same rows.

    It also keeps the episodes that are learned from: their seeds and actions, from which they can be played again, and
    what the policy thought then. They are buffers, so that a run that stops between two updates from the same episodes
    goes on with these. So are the scale of returns and the number of steps that were played.
    """

    seeds: Tensor
    played: Tensor
    chances: Tensor
    values: Tensor
    last: Tensor
    parts: Tensor
    used: Tensor
    scale: Tensor
    frames: Tensor

    def __init__(self, answer: Acts, dim: int | None) -> None:
        super().__init__(answer.actions, dim)
        self.answer = answer
        self.value: nn.Module | None = None if dim is None else nn.Linear(dim, 1)
        if isinstance(self.logits, nn.Linear):
            nn.init.normal_(self.logits.weight, std=0.01)  # at first all actions are about as likely
        shape = (answer.episodes, answer.limit)
        self.register_buffer("seeds", torch.full((answer.episodes,), -1))  # −1: there is no such episode
        self.register_buffer("played", torch.full(shape, -1))  # −1: the episode has ended
        self.register_buffer("chances", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        self.register_buffer("last", torch.zeros(answer.episodes))
        self.register_buffer("parts", torch.ones((), dtype=torch.long))  # batches of each epoch
        self.register_buffer("used", torch.full((), -1))  # batches learned from since; −1: none were played yet
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("frames", torch.zeros((), dtype=torch.long))

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        if self.value is None:
            return rows
        return torch.cat([self.logits(rows), self.value(rows) * self.scale], -1)

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum over steps, and their number."""
        answers, keep = batch.answers, batch.target_keep
        logs = widened(outputs[..., :-1]).log_softmax(-1)
        ratio = (logs.gather(-1, answers[ACTION].data[..., None])[..., 0] - answers[CHANCE].data).exp()
        advantage = answers[ADVANTAGE].data
        near = ratio.clamp(1 - self.answer.clip, 1 + self.answer.clip)
        losses = -torch.minimum(ratio * advantage, near * advantage)
        error = (widened(outputs[..., -1]) - answers[RETURN].data) / widened(self.scale)
        losses = losses + self.answer.value_weight * error**2
        losses = losses + self.answer.entropy_weight * (logs.exp() * logs).sum(-1)
        return counted(losses, keep)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The likeliest action of each step."""
        actions: list[Any] = outputs[..., :-1].argmax(-1).tolist()
        return actions
