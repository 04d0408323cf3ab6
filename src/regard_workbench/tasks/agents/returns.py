"""What a step of an episode was worth."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted(rewards: Tensor, discount: float) -> Tensor:
    """The discounted return from each step on, (b,t), where nothing follows the last one."""
    returns, after = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for step in reversed(range(rewards.shape[1])):
        after = rewards[:, step] + discount * after
        returns[:, step] = after
    return returns


def advantages(rewards: Tensor, values: Tensor, keep: Tensor, last: Tensor, discount: float, trace: float) -> Tensor:
    """By how much the actions of each step were better than expected, (b,t): generalised advantage estimation.

        δ_t = r_t + discount · v_{t+1} − v_t,     A_t = δ_t + discount · trace · A_{t+1}

    Paper: Schulman et al. 2016, equations 11 to 16.

    Args:
        rewards: (b,t); 0 where there is no step
        values: (b,t): the return that was expected at each step
        keep: (b,t), True where there is a step; they stand at the beginning
        last: (b,): the return expected after the last step; 0 where the episode ended, more where it was cut
    """
    estimates = torch.zeros_like(rewards)
    after, ahead = torch.zeros_like(last), last
    for step in reversed(range(rewards.shape[1])):
        real = keep[:, step]
        error = rewards[:, step] + discount * ahead - values[:, step]
        after = torch.where(real, error + discount * trace * after, after)
        ahead = torch.where(real, values[:, step], ahead)
        estimates[:, step] = torch.where(real, after, torch.zeros_like(after))
    return estimates
