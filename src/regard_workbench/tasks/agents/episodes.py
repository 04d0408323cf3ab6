"""Episodes: played side by side with a policy, or played again from their seeds and actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard_workbench.tasks.agents.environments import Environment, make

# From the observations of one more step, (b,width), to logits and the return to expect, (b,actions+1), on the CPU.
# A policy with a memory has a method `select`, which is told when only some of its rows go on (`PolicyOfModel`).
Policy = Callable[[Tensor], Tensor]
_WORLDS: dict[str, list[Environment]] = {}


@dataclass(frozen=True)
class Episodes:
    """Several episodes, padded to one length."""

    seeds: list[int]
    seen: Tensor  # (b,t,width): the observation, then, where asked for, the action before as a one-hot code
    keep: Tensor  # (b,t): True where there is a step
    action: Tensor  # (b,t); 0 where there is no step
    reward: Tensor  # (b,t)
    log_prob: Tensor  # (b,t): of the action, when it was chosen
    value: Tensor  # (b,t): the return that was expected then
    last: Tensor  # (b,): the return expected after the last step; 0 where the episode ended by itself


def play(
    name: str,
    seeds: Sequence[int],
    policy: Policy,
    generator: torch.Generator,
    *,
    greedy: bool = False,
    last_action: bool = True,
) -> Episodes:
    """Play an episode of the environment `name` from each seed, with sampled or the likeliest actions."""

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        if greedy:
            return logits.argmax(-1)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    return _played(name, seeds, policy, choose, last_action)


def replay(name: str, seeds: Sequence[int], actions: Tensor, *, last_action: bool = True) -> Episodes:
    """Play again with the same actions (b,limit): all but what a policy thought, which is zeros."""
    count = int(actions.max()) + 1
    return _played(
        name,
        seeds,
        lambda seen: torch.zeros(len(seen), count + 1),
        lambda logits, rows, step: actions[rows, step],
        last_action,
    )


def _played(
    name: str, seeds: Sequence[int], policy: Policy, choose: Callable[[Tensor, Tensor, int], Tensor], last_action: bool
) -> Episodes:
    worlds = _worlds(name, len(seeds))
    facts = worlds[0].facts
    size = len(seeds)
    observations = np.zeros((size, facts.width + last_action * len(facts.actions)), np.float32)
    for row, (world, seed) in enumerate(zip(worlds, seeds, strict=False)):
        observations[row, : facts.width] = world.reset(seed)
    rows = np.arange(size)  # the policy's row i is episode rows[i]
    running, cut = np.ones(size, bool), np.zeros(size, bool)
    last = np.zeros(size, np.float32)
    steps: list[tuple[NDArray[Any], ...]] = []
    while running.any() or cut.any():
        if 2 * np.count_nonzero(going := (running | cut)[rows]) <= len(rows):
            rows = rows[going]
            getattr(policy, "select", lambda kept: None)(torch.from_numpy(np.flatnonzero(going)))
        observed = observations[rows]
        outputs = policy(torch.from_numpy(observed)).float()
        value = outputs[:, -1].numpy()
        last[rows] = np.where(cut[rows], value, last[rows])
        cut[:] = False
        if not running.any():
            break
        logs = outputs[:, :-1].log_softmax(-1)
        action = choose(logs, torch.from_numpy(rows), len(steps)).clamp(min=0)
        chance = logs.gather(1, action[:, None])[:, 0].numpy()
        real, actions = running[rows], action.tolist()
        reward = np.zeros(len(rows), np.float32)
        observations[:, facts.width :] = 0
        for place in np.flatnonzero(real).tolist():
            row = int(rows[place])
            moment = worlds[row].act(actions[place])
            observations[row, : facts.width] = moment.seen
            if last_action:
                observations[row, facts.width + actions[place]] = 1
            reward[place] = moment.reward
            running[row] = not (moment.ended or moment.cut)
            cut[row] = moment.cut and not moment.ended
        kept = (rows, observed, action.numpy(), reward, chance, value)
        steps.append((*(column[real] for column in kept),))
    return _padded(list(seeds), steps, last)


def _padded(seeds: list[int], steps: list[tuple[NDArray[Any], ...]], last: NDArray[np.float32]) -> Episodes:
    """Episodes from what was noted in each step: the episodes that it belongs to, and a row for each of them."""
    keep = torch.zeros(len(seeds), len(steps), dtype=torch.bool)
    _, *columns = steps[0]
    padded = [
        torch.zeros(len(seeds), len(steps), *column.shape[1:], dtype=torch.from_numpy(column).dtype)
        for column in columns
    ]
    for step, (rows, *columns) in enumerate(steps):
        index = torch.from_numpy(rows)
        keep[index, step] = True
        for target, column in zip(padded, columns, strict=True):
            target[index, step] = torch.from_numpy(column)
    observations, action, reward, chance, value = padded
    return Episodes(seeds, observations, keep, action, reward, chance, value, torch.from_numpy(last))


def _worlds(name: str, count: int) -> list[Environment]:
    """So many environments; they are kept, because making one takes longer than an episode."""
    worlds = _WORLDS.setdefault(name, [])
    while len(worlds) < count:
        worlds.append(make(name))
    return worlds
