"""Act in an environment, and learn from what the actions return."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.arguments import finite_number, share, whole_number
from regard.tasks.agents.environments import EnvironmentFacts, make
from regard.tasks.agents.episodes import Episodes, play, replay
from regard.tasks.agents.policy import PolicyOfModel
from regard.tasks.agents.returns import advantages, discounted
from regard.tasks.answers.acts import ACTION, ADVANTAGE, CHANCE, RETURN, REWARD, Acts, PolicyHead
from regard.tasks.batch import MADE_FROM, Batch, Stream
from regard.tasks.formats.splits import checked_split
from regard.tasks.measures.metrics import LOSS, Answered, Answering, Mean, Metric
from regard.tasks.shown import Shown
from regard.tasks.streams import Vectors
from regard.tasks.task import Recipe, Task, task

# The first seed of each split and how many there are. No episode of one split is one of another.
SEEDS = {"train": (1_000_000, 1_000_000), "validation": (0, 100), "test": (10_000, 200)}


def _returns(answered: Answered) -> Tensor:
    reward = answered.batch.answers[REWARD]
    return reward.data.sum(1)


def _returned(answered: Answered) -> tuple[float, float]:
    found = _returns(answered)
    return float(found.sum()), float(len(found))


def _succeeded(facts: EnvironmentFacts, answered: Answered) -> tuple[float, float]:
    found = _returns(answered)
    good = found >= facts.good if facts.reached else found > facts.good
    return float(good.sum()), float(len(found))


MEAN_RETURN = Mean("return", over="episodes", look=_returned)


@task("agent")
class AgentTask(Task):
    """Acts in an environment; trained by proximal policy optimisation from episodes that the model itself plays.

    Every so often `episodes` episodes are played with the policy as it is. The next steps of training learn from these,
    `epochs` times from each, in batches of `batch_size` episodes. In evaluation the likeliest action is taken.

    Paper: Schulman et al. 2017 (PPO); Schulman et al. 2016 (GAE).

    Args:
        env: t-maze (remember a sign until the junction), or an environment of gymnasium by its name: CartPole-v1,
            MiniGrid-MemoryS7-v0 (extra `agents`)
        episodes: how many are played before they are learned from
        epochs: how often each is learned from
        discount: of later rewards
        trace: λ of generalised advantage estimation
        clip: how far the probability of an action may move away from what it was, before its gradient is cut
        entropy_weight: weight of the entropy of the actions
        value_weight: weight of the error of the return to expect
    """

    tried = ("--example", "3")
    metric = MEAN_RETURN
    recipe = Recipe(
        model="agent", steps=400, batch_size=16, lr=2e-3, warmup=10, weight_decay=0.0, clip=0.5,
        compared=("agent", "agent(memory=lstm)", "agent(memory=slots)", "agent(memory=none)"),
        reaches={"success": 0.95},
    )  # fmt: skip

    def __init__(
        self,
        env: str = "t-maze",
        episodes: int = 32,
        epochs: int = 4,
        discount: float = 0.99,
        trace: float = 0.95,
        clip: float = 0.2,
        entropy_weight: float = 0.01,
        value_weight: float = 0.5,
    ) -> None:
        self.env, self.facts = env, make(env).facts
        self.epochs = whole_number("epochs", epochs, 1)
        self.discount, self.trace = share("discount", discount), share("trace", trace)
        self.answer = Acts(
            len(self.facts.actions), self.facts.limit, whole_number("episodes", episodes, 1),
            finite_number("clip", clip, above=0.0), finite_number("value_weight", value_weight),
            finite_number("entropy_weight", entropy_weight),
        )  # fmt: skip
        self._held: Worth | None = None

    def streams(self) -> dict[str, Vectors]:
        """What is seen at each step, and the action before it."""
        return {"seen": Vectors(self.facts.width + len(self.facts.actions), self.facts.limit)}

    def answers(self) -> list[Acts]:
        """An action at each step."""
        return [self.answer]

    def metrics(self) -> tuple[Metric, ...]:
        success = Mean(
            "success", unit="share", over="episodes", look=functools.partial(_succeeded, self.facts)
        )
        return (LOSS, MEAN_RETURN, success)

    def examples(self, split: str) -> Sequence[int]:
        """The seeds of episodes."""
        first, count = SEEDS[checked_split(split)]
        return range(first, first + count)

    def length(self, example: int) -> int:
        """The most steps: how many there are depends on what is done."""
        return self.facts.limit

    def batch(
        self,
        examples: Sequence[int],
        chosen: Sequence[int],
        generator: torch.Generator,
        model: Answering | None = None,
    ) -> Batch:
        """Episodes played with the model; in training, some of those that are being learned from."""
        if model is not None and getattr(model, "training", False):
            return self._to_learn_from(examples, len(chosen), generator, model)
        return self.collate([examples[index] for index in chosen], generator, model)

    def collate(
        self, examples: Sequence[int], generator: torch.Generator, model: Answering | None = None
    ) -> Batch:
        """Episodes with random actions, or with those of a model."""
        played = self._worth(self._play(examples, generator, model))
        return _batch(played, torch.arange(len(examples)))

    def _play(self, seeds: Sequence[int], generator: torch.Generator, model: Any) -> Episodes:
        if model is None:
            even = torch.zeros(len(self.facts.actions) + 1)
            return play(self.env, seeds, lambda seen: even.expand(len(seen), -1), generator)
        training = model.training
        model.eval()  # what is learned from was done without dropout
        try:
            with torch.no_grad():
                return play(self.env, seeds, PolicyOfModel(model, len(seeds)), generator, greedy=not training)
        finally:
            model.train(training)

    def _to_learn_from(
        self, examples: Sequence[int], size: int, generator: torch.Generator, model: Any
    ) -> Batch:
        """The next of the episodes that are learned from; new ones are played where these were used up."""
        head: PolicyHead = model.head
        episodes = self.answer.episodes
        if not 0 <= int(head.used) < self.epochs * episodes:
            drawn = torch.randint(len(examples), (episodes,), generator=generator)
            played = self._play([examples[index] for index in drawn.tolist()], generator, model)
            _keep(head, played)
            self._held = self._worth(played)
            # Of rewards alone: with the values in it, a scale that is too large would raise itself.
            largest = discounted(played.reward, self.discount).abs().max().to(head.scale)
            head.scale.copy_(torch.maximum(head.scale, largest))
            head.frames += int(played.keep.sum())
        elif self._held is None:  # the run was resumed
            self._held = self._worth(_kept(head, self.env))
        used = int(head.used)
        order = [
            torch.randperm(episodes, generator=torch.Generator().manual_seed(int(head.seeds[0]) + epoch))
            for epoch in range(self.epochs)
        ]
        head.used += size
        return _batch(self._held, torch.cat(order)[used : used + size])

    def _worth(self, played: Episodes) -> Worth:
        """Episodes with what their actions were worth."""
        gain = advantages(played.reward, played.value, played.keep, played.last, self.discount, self.trace)
        returns = (gain + played.value).masked_fill(~played.keep, 0)
        real = gain[played.keep]
        gain = ((gain - real.mean()) / (real.std(correction=0) + 1e-8)).masked_fill(~played.keep, 0)
        return Worth(played, gain, returns)

    def protocol(self) -> dict[str, Any]:
        """How episodes are played in an evaluation."""
        return {"actions": "the likeliest", "env": self.env}

    def show(self, example: int, batch: Batch) -> Shown:
        """The steps of an episode by their number and what was done."""
        done = batch.answers[ACTION].data[0].tolist()
        total = float(batch.answers[REWARD].data[0].sum())
        pieces = [f"{step} {self.facts.actions[action]}" for step, action in enumerate(done)]
        return Shown(f"an episode of {self.env} that returns {total:.3g}", pieces, "steps")

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The names of actions."""
        return [self.facts.actions[token] for token in tokens]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}


class Worth(NamedTuple):
    """Episodes with what their actions were worth."""

    played: Episodes
    gain: Tensor  # (b,t): the advantage of each step, normalised over all of them
    returns: Tensor  # (b,t): the return from each step on, with what was expected after the last one


def _batch(worth: Worth, rows: Tensor) -> Batch:
    """Some of the episodes."""
    played = worth.played
    keep = played.keep[rows]
    length = int(keep.sum(1).max()) if len(rows) else 0
    keep = keep[:, :length].contiguous()

    def part(data: Tensor) -> Stream:
        return Stream(data[:, :length][rows], keep)

    answers = {
        ACTION: played.action, CHANCE: played.log_prob, ADVANTAGE: worth.gain, RETURN: worth.returns,
        REWARD: played.reward,
    }  # fmt: skip
    return Batch(
        {"seen": part(played.seen)},
        {name: part(data) for name, data in answers.items()},
        notes={MADE_FROM: tuple(played.seeds[row] for row in rows.tolist())},
    )


def _keep(head: PolicyHead, played: Episodes) -> None:
    """Note in the head what the episodes can be played again from."""
    steps = played.keep.shape[1]
    head.seeds.copy_(torch.tensor(played.seeds))
    head.played.fill_(-1)
    head.played[:, :steps] = torch.where(played.keep, played.action, -1).to(head.played)
    for held, data in ((head.chances, played.log_prob), (head.values, played.value)):
        held.zero_()
        held[:, :steps] = data.to(held)
    head.last.copy_(played.last)
    head.used.zero_()


def _kept(head: PolicyHead, env: str) -> Episodes:
    """The episodes that `_keep` noted, played again."""
    found = replay(env, head.seeds.tolist(), head.played.cpu())
    steps = found.keep.shape[1]
    return dataclasses.replace(
        found, log_prob=head.chances[:, :steps].float().cpu(), value=head.values[:, :steps].float().cpu(),
        last=head.last.float().cpu(),
    )  # fmt: skip
