"""Attention as a gate: a weight from 0 to 1 by which each channel, or each place, of feature maps is multiplied."""

from __future__ import annotations

import torch
from torch import Tensor, nn

KERNEL = 7  # pixels of a side that the weight of a place is made from


class ChannelAttention(nn.Module):
    """A weight from 0 to 1 for each channel, from the means of all channels.

        s = σ(W₂ relu(W₁ mean(x))),   out = s ⊙ x

    Paper: Hu et al. 2018 (squeeze and excitation).
    """

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        inside = max(4, width // reduction)
        self.squeeze, self.excite = nn.Linear(width, inside), nn.Linear(inside, width)

    def weights(self, maps: Tensor) -> Tensor:
        """(b,c,h,w) → (b,c)."""
        return torch.sigmoid(self.excite(torch.relu(self.squeeze(maps.mean((2, 3))))))

    def forward(self, maps: Tensor) -> Tensor:
        return maps * self.weights(maps)[:, :, None, None]


class SpatialAttention(nn.Module):
    """A weight from 0 to 1 for each place, from the mean and the largest of its channels.

        s = σ(conv₇ₓ₇[mean_c(x); max_c(x)]),   out = s ⊙ x

    Paper: Woo et al. 2018 (CBAM).
    """

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(2, 1, KERNEL, padding=KERNEL // 2)

    def weights(self, maps: Tensor) -> Tensor:
        """(b,c,h,w) → (b,h,w)."""
        logits: Tensor = self.look(torch.stack([maps.mean(1), maps.amax(1)], 1))
        return torch.sigmoid(logits[:, 0])

    def forward(self, maps: Tensor) -> Tensor:
        return maps * self.weights(maps)[:, None]
