"""A rollout: episodes that were played with one policy and are learned from several times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard_workbench.tasks.agents.episodes import Episodes, replay
from regard_workbench.tasks.agents.returns import advantages
from regard_workbench.tasks.answers.acts import ACTION, ADVANTAGE, CHANCE, RETURN, REWARD, PolicyHead
from regard_workbench.tasks.parts.batch import MADE_FROM, Batch, Stream


@dataclass(frozen=True)
class Rollout:
    """Episodes with what their actions were worth."""

    played: Episodes
    advantage: Tensor  # (b,t), normalised over all steps
    returns: Tensor  # (b,t): from each step on, with what was expected after the last one

    @classmethod
    def of(cls, played: Episodes, discount: float, trace: float) -> Self:
        """Judge the actions of episodes."""
        advantage = advantages(played.reward, played.value, played.keep, played.last, discount, trace)
        returns = (advantage + played.value).masked_fill(~played.keep, 0)
        real = advantage[played.keep]
        advantage = ((advantage - real.mean()) / (real.std(correction=0) + 1e-8)).masked_fill(~played.keep, 0)
        return cls(played, advantage, returns)

    def batch(self, rows: Tensor | None = None) -> Batch:
        """All of the episodes, or some rows of them."""
        played = self.played
        rows = torch.arange(len(played.seeds)) if rows is None else rows
        keep = played.keep[rows]
        length = int(keep.sum(1).max()) if len(rows) else 0
        keep = keep[:, :length].contiguous()
        answers = {
            ACTION: played.action,
            CHANCE: played.log_prob,
            ADVANTAGE: self.advantage,
            RETURN: self.returns,
            REWARD: played.reward,
        }
        return Batch(
            {"seen": Stream(played.seen[:, :length][rows], keep)},
            {name: Stream(data[:, :length][rows], keep) for name, data in answers.items()},
            notes={MADE_FROM: tuple(played.seeds[row] for row in rows.tolist())},
        )

    def part(self, number: int, parts: int) -> Tensor:
        """The rows of batch `number` of those that a rollout is divided into, in another order each time."""
        epoch, place = divmod(number, parts)
        random = torch.Generator().manual_seed(self.played.seeds[0] + epoch)
        return torch.randperm(len(self.played.seeds), generator=random).tensor_split(parts)[place]


def play_until(
    frames: int, seeds: Sequence[int], least: int, length: float, play: Callable[[Sequence[int]], Episodes]
) -> Episodes:
    """Play whole episodes from the seeds, in their order, until they have so many steps or the seeds are used up.

    How many are played at once follows from their `length`: first the one that is expected, then the one that is found.
    The `least` number of episodes is played in any case.
    """
    episodes: list[Episodes] = []
    played = steps = 0
    while played < len(seeds) and steps < frames:
        count = max(least - played, math.ceil((frames - steps) / length))
        episodes.append(play(seeds[played : played + count]))
        played = min(played + count, len(seeds))
        steps += int(episodes[-1].keep.sum())
        length = steps / played
    return _joined(episodes)


def _joined(parts: list[Episodes]) -> Episodes:
    """Several groups of episodes as one."""
    longest = max(group.keep.shape[1] for group in parts)

    def together(name: str) -> Tensor:
        pieces: list[Tensor] = [getattr(group, name) for group in parts]
        if pieces[0].dim() == 1:
            return torch.cat(pieces)
        widths = [(0, 0) * (tensor.dim() - 2) + (0, longest - tensor.shape[1]) for tensor in pieces]
        return torch.cat([F.pad(tensor, width) for tensor, width in zip(pieces, widths, strict=True)])

    tensors = [field.name for field in dataclasses.fields(Episodes) if field.name != "seeds"]
    if len(parts) == 1:
        return parts[0]
    return Episodes([seed for group in parts for seed in group.seeds], **{name: together(name) for name in tensors})


def keep(head: PolicyHead, played: Episodes, parts: int) -> None:
    """Note in the head what the episodes can be played again from, and into how many batches they are divided."""
    count, steps = played.keep.shape
    head.seeds.fill_(-1)
    head.seeds[:count] = torch.tensor(played.seeds)
    head.played.fill_(-1)
    head.played[:count, :steps] = torch.where(played.keep, played.action, -1).to(head.played)
    for buffer, data in ((head.chances, played.log_prob), (head.values, played.value)):
        buffer.zero_()
        buffer[:count, :steps] = data.to(buffer)
    head.last.zero_()
    head.last[:count] = played.last.to(head.last)
    head.parts.fill_(parts)
    head.used.zero_()


def kept(head: PolicyHead, env: str, *, last_action: bool = True) -> Episodes:
    """The episodes that `keep` noted, played again."""
    seeds = [seed for seed in head.seeds.tolist() if seed >= 0]
    count = len(seeds)
    episodes = replay(env, seeds, head.played[:count].cpu(), last_action=last_action)
    steps = episodes.keep.shape[1]
    return dataclasses.replace(
        episodes,
        log_prob=head.chances[:count, :steps].float().cpu(),
        value=head.values[:count, :steps].float().cpu(),
        last=head.last[:count].float().cpu(),
    )


def mean_length(head: PolicyHead) -> float:
    """The mean length of the episodes that the head holds; where it holds none, the longest possible."""
    lengths = (head.played >= 0).sum(1)
    lengths = lengths[lengths > 0]
    return float(lengths.double().mean()) if len(lengths) else float(head.played.shape[1])
