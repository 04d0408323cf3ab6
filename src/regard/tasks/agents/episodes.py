"""Episodes: played side by side with a policy, or played again from their seeds and actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.tasks.agents.environments import Environment, make

# From the observations of one more step, (b,width), to logits and the return to expect, (b,actions+1), on the CPU.
Policy = Callable[[Tensor], Tensor]
_WORLDS: dict[str, list[Environment]] = {}


@dataclass(frozen=True)
class Episodes:
    """Several episodes, padded to one length."""

    seeds: list[int]
    seen: Tensor  # (b,t,width): the observation, then the action before as a one-hot code
    keep: Tensor  # (b,t): True where there is a step
    action: Tensor  # (b,t); 0 where there is no step
    reward: Tensor  # (b,t)
    log_prob: Tensor  # (b,t): of the action, when it was chosen
    value: Tensor  # (b,t): the return that was expected then
    last: Tensor  # (b,): the return expected after the last step; 0 where the episode ended by itself


def play(
    name: str, seeds: Sequence[int], policy: Policy, generator: torch.Generator, *, greedy: bool = False
) -> Episodes:
    """Play an episode of the environment `name` from each seed, with sampled or the likeliest actions."""

    def choose(logits: Tensor, step: int) -> Tensor:
        if greedy:
            return logits.argmax(-1)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    return _played(name, seeds, policy, choose)


def replay(name: str, seeds: Sequence[int], actions: Tensor) -> Episodes:
    """Play again with the same actions (b,limit): all but what a policy thought, which is zeros."""
    count = int(actions.max()) + 1
    return _played(
        name, seeds, lambda seen: torch.zeros(len(seen), count + 1), lambda logits, step: actions[:, step]
    )


def _played(
    name: str, seeds: Sequence[int], policy: Policy, choose: Callable[[Tensor, int], Tensor]
) -> Episodes:
    worlds = _worlds(name, len(seeds))
    facts = worlds[0].facts
    actions, size = len(facts.actions), len(seeds)
    now = np.zeros((size, facts.width + actions), np.float32)
    for row, (world, seed) in enumerate(zip(worlds, seeds, strict=False)):
        now[row, : facts.width] = world.reset(seed)
    running, cut = np.ones(size, bool), np.zeros(size, bool)
    last = torch.zeros(size)
    steps: list[tuple[Tensor, ...]] = []
    while running.any() or cut.any():
        seen = torch.from_numpy(now.copy())
        outputs = policy(seen).float()
        last = torch.where(torch.from_numpy(cut), outputs[:, -1], last)
        cut[:] = False
        if not running.any():
            break
        logs = outputs[:, :-1].log_softmax(-1)
        action = choose(logs, len(steps)).clamp(min=0)
        reward = torch.zeros(size)
        real = torch.from_numpy(running.copy())
        now[:, facts.width :] = 0
        for row in np.flatnonzero(running).tolist():
            taken = int(action[row])
            moment = worlds[row].act(taken)
            now[row, : facts.width] = moment.seen
            now[row, facts.width + taken] = 1
            reward[row] = moment.reward
            running[row] = not (moment.ended or moment.cut)
            cut[row] = moment.cut and not moment.ended
        chance = logs.gather(1, action[:, None])[:, 0]
        steps.append((seen, real, action, reward, chance, outputs[:, -1]))
    seen, keep, action, reward, chance, value = (torch.stack(one, 1) for one in zip(*steps, strict=True))
    zero = ~keep
    return Episodes(
        list(seeds), seen.masked_fill(zero[..., None], 0), keep, action.masked_fill(zero, 0), reward,
        chance.masked_fill(zero, 0), value.masked_fill(zero, 0), last,
    )  # fmt: skip


def _worlds(name: str, count: int) -> list[Environment]:
    """So many environments; they are kept, because making one takes longer than an episode."""
    held = _WORLDS.setdefault(name, [])
    while len(held) < count:
        held.append(make(name))
    return held
