"""Observations in units of their own spread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LIMIT = 5.0  # standard deviations; what was hardly ever seen must not outweigh everything else
LEAST = 1e-4  # of a variance: what never changed stays close to zero


class Standardize(nn.Module):
    """(x − mean) / standard deviation, at most ±5, over everything that was observed; before that, of 0 and 1.

    In a grid of one-hot codes most columns are the same in every frame, and what matters is a few that rarely change.
    The statistics are buffers. They change only by `observe`, so that a policy learns from its actions with the numbers
    that it chose them with.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    @torch.no_grad()
    def observe(self, rows: Tensor) -> None:
        """Add rows (n,width) to the statistics (Chan et al. 1979, equation 2.1)."""
        rows = rows.to(self.mean.device).double()
        before, new = int(self.count), len(rows)
        if not new:
            return
        share = new / (before + new)
        mean, step = self.mean.double(), rows.mean(0) - self.mean.double()
        within = (1 - share) * self.variance.double() * (before > 0) + share * rows.var(0, correction=0)
        self.mean.copy_(mean + share * step)
        self.variance.copy_(within + share * (1 - share) * step**2)
        self.count += new

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * (self.variance + LEAST).rsqrt()).clamp(-LIMIT, LIMIT)
