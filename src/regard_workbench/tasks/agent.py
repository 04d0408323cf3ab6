"""Act in an environment, and learn from what the actions return."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.support.arguments import finite_number, share
from regard.support.declared import at_least, option
from regard_workbench.tasks.agents.environments import EnvironmentFacts, make
from regard_workbench.tasks.agents.episodes import Episodes, Policy, play
from regard_workbench.tasks.agents.policy import PolicyOfModel
from regard_workbench.tasks.agents.returns import discounted
from regard_workbench.tasks.agents.rollout import Rollout, keep, kept, mean_length, play_until
from regard_workbench.tasks.answers.acts import ACTION, REWARD, Acts, PolicyHead
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.measures.metrics import LOSS, Answered, Answering, Mean, Metric
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Vectors
from regard_workbench.tasks.parts.task import Recipe, Task, task

MOST_FRAMES = 64  # of an episode that is drawn: more cannot be told apart on a page
# The first seed of each split and how many there are. No episode of one split is one of another.
SEEDS = {"train": (1_000_000, 1_000_000), "validation": (0, 100), "test": (10_000, 200)}


def _returns(answered: Answered) -> Tensor:
    reward = answered.batch.answers[REWARD]
    return reward.data.sum(1)


def _returned(answered: Answered) -> tuple[float, float]:
    returns = _returns(answered)
    return float(returns.sum()), float(len(returns))


def _succeeded(facts: EnvironmentFacts, answered: Answered) -> tuple[float, float]:
    returns = _returns(answered)
    good = returns >= facts.good if facts.reached else returns > facts.good
    return float(good.sum()), float(len(returns))


MEAN_RETURN = Mean("return", over="episodes", look=_returned)


class AgentPresenter(Presenter["AgentTask"]):
    """Shows the steps of an episode."""

    def show(self, task: AgentTask, example: int, batch: Batch) -> Shown:
        """The steps of an episode by their number and what was done; where frames are pictures, side by side."""
        actions = batch.answers[ACTION].data[0].tolist()
        total = float(batch.answers[REWARD].data[0].sum())
        pieces = [f"{step} {task.facts.actions[action]}" for step, action in enumerate(actions)]
        words = f"an episode of {task.env} that returns {total:.3g}"
        world, observed = make(task.env), batch.inputs[0, :, : task.facts.width].cpu().numpy()
        pictures = [world.picture(row) for row in observed[:MOST_FRAMES]]
        frames = [picture for picture in pictures if picture is not None]
        if not frames or len(frames) < len(actions):
            return Shown(words, pieces, "steps")
        return Shown(words, pieces, "steps", picture=np.concatenate(frames, 1), grid=(1, len(frames)))

    def output_pieces(self, task: AgentTask, tokens: Sequence[int]) -> list[str]:
        """The names of actions."""
        return [task.facts.actions[token] for token in tokens]


@task("agent")
class AgentTask(Task):
    """Acts in an environment; trained by proximal policy optimisation from episodes that the model itself plays.

    A rollout is made of whole episodes, played with the policy as it is: `frames` steps or a little more, but at most
    `episodes` episodes. The next steps of training learn from it `epochs` times, each time in `episodes` / `batch_size`
    batches, so that batches have about the same number of steps however long episodes are. In evaluation the likeliest
    action is taken.

    Paper: Schulman et al. 2017 (PPO); Schulman et al. 2016 (GAE).
    """

    tried = ("--example", "3")
    judge = Judge.by(MEAN_RETURN)  # `metrics` says how success is measured
    presenter = AgentPresenter()
    acts = True
    recipe = Recipe(
        model="agent",
        steps=400,
        batch_size=16,
        lr=2e-3,
        warmup=10,
        weight_decay=0.0,
        clip=0.5,
        compared=("agent", "agent(memory=lstm)", "agent(memory=slots)", "agent(memory=none)"),
        reaches={"success": 0.95},
    )

    env: str = option(
        "t-maze (remember a sign until the junction), or an environment of gymnasium by its name: CartPole-v1, "
        "MiniGrid-MemoryS7-v0 (extra `agents`)",
        default="t-maze",
    )
    last_action: bool = option(
        "whether the action before is part of what is seen; if not, memory=none remembers nothing at all", default=True
    )
    episodes: int = option("the most that are played before they are learned from", at_least(1), default=32)
    frames: int = option("how many steps of them are enough", at_least(1), default=2048)
    epochs: int = option("how often each is learned from", at_least(1), default=4)
    discount: float = option("of later rewards", share, default=0.99)
    trace: float = option("λ of generalised advantage estimation", share, default=0.95)
    clip: float = option(
        "how far the probability of an action may move away from what it was, before its gradient is cut",
        lambda name, clip: finite_number(name, clip, above=0.0),
        default=0.2,
    )
    entropy_weight: float = option("weight of the entropy of the actions", finite_number, default=0.01)
    value_weight: float = option("weight of the error of the return to expect", finite_number, default=0.5)

    def check_options(self) -> None:
        self.facts = make(self.env).facts  # refuses environments that do not exist
        self._rollout: Rollout | None = None  # what is learned from

    @cached_property
    def answer(self) -> Acts:
        """An action at each step."""
        actions, limit = len(self.facts.actions), self.facts.limit
        return Acts(actions, limit, self.episodes, self.clip, self.value_weight, self.entropy_weight)

    def streams(self) -> dict[str, Vectors]:
        """What is seen at each step, and the action before it where asked for."""
        width = self.facts.width + self.last_action * len(self.facts.actions)
        return {"seen": Vectors(width, self.facts.limit)}

    def answers(self) -> list[Acts]:
        """An action at each step."""
        return [self.answer]

    def metrics(self) -> tuple[Metric, ...]:
        success = Mean("success", unit="share", over="episodes", look=partial(_succeeded, self.facts))
        return (LOSS, MEAN_RETURN, success)

    def examples(self, split: str) -> Sequence[int]:
        """The seeds of episodes."""
        first, count = SEEDS[checked_split(split)]
        return range(first, first + count)

    def length(self, example: int) -> int:
        """The most steps: how many there are depends on what is done."""
        return self.facts.limit

    def batch(
        self, examples: Sequence[int], chosen: Sequence[int], generator: torch.Generator, model: Answering | None = None
    ) -> Batch:
        """Episodes played with the model; in training, some of those that are being learned from."""
        if model is not None and getattr(model, "training", False):
            return self._to_learn_from(examples, len(chosen), generator, model)
        return self.collate([examples[index] for index in chosen], generator, model)

    def collate(self, examples: Sequence[int], generator: torch.Generator, model: Answering | None = None) -> Batch:
        """Episodes with random actions, or with those of a model."""
        return self._judged(self._play(examples, generator, model)).batch()

    def _episodes(
        self, seeds: Sequence[int], policy: Policy, generator: torch.Generator, greedy: bool = False
    ) -> Episodes:
        return play(self.env, seeds, policy, generator, greedy=greedy, last_action=self.last_action)

    def _play(self, seeds: Sequence[int], generator: torch.Generator, model: Any) -> Episodes:
        if model is None:
            even = torch.zeros(len(self.facts.actions) + 1)
            return self._episodes(seeds, lambda seen: even.expand(len(seen), -1), generator)
        training = model.training
        model.eval()  # what is learned from was done without dropout
        try:
            with torch.no_grad():
                return self._episodes(seeds, PolicyOfModel(model, len(seeds)), generator, greedy=not training)
        finally:
            model.train(training)

    def _to_learn_from(self, examples: Sequence[int], size: int, generator: torch.Generator, model: Any) -> Batch:
        """The next batch of the rollout that is learned from; a new one is played where this was used up."""
        head: PolicyHead = model.head
        if not 0 <= int(head.used) < self.epochs * int(head.parts):
            drawn = torch.randint(len(examples), (self.episodes,), generator=generator)
            seeds = [examples[index] for index in drawn.tolist()]
            minibatches = -(-len(seeds) // size)
            self._observe(model)
            played = play_until(
                self.frames, seeds, minibatches, mean_length(head), lambda some: self._play(some, generator, model)
            )
            keep(head, played, minibatches)
            # Of rewards alone: with the values in it, a scale that is too large would raise itself.
            largest = discounted(played.reward, self.discount).abs().max().to(head.scale)
            head.scale.copy_(torch.maximum(head.scale, largest))
            head.frames += int(played.keep.sum())
            self._rollout = self._judged(played)
        elif self._rollout is None:  # the run was resumed
            self._rollout = self._last(head)
        rows = self._rollout.part(int(head.used), int(head.parts))
        head.used += 1
        return self._rollout.batch(rows)

    def _last(self, head: PolicyHead) -> Rollout:
        return self._rollout or self._judged(kept(head, self.env, last_action=self.last_action))

    def _observe(self, model: Any) -> None:
        """Tell a model that standardises its input what was seen in the last rollout.

        Only now, since the policy must learn from that rollout with the numbers that it chose its actions with.
        """
        if hasattr(model, "standardize") and int(model.head.used) >= 0:
            played = self._last(model.head).played
            model.standardize.observe(played.seen[played.keep])

    def _judged(self, played: Episodes) -> Rollout:
        return Rollout.of(played, self.discount, self.trace)

    def protocol(self) -> dict[str, Any]:
        """How episodes are played in an evaluation."""
        return {"actions": "the likeliest", "env": self.env}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rollout": None}
