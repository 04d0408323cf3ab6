"""Self-attention among the places of feature maps, added with a learned weight that starts at 0."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.parts.building import build_bidirectional


class PlaceAttention(nn.Module):
    """Every place looks at all places, and adds γ times what it gets from them.

        y = x + γ · attend(x),   γ = 0 at first

    So a network begins with what lies near each place and learns how much of what lies far away to add.

    Paper: Zhang et al. 2019, equation 3.
    """

    def __init__(self, dim: int, attention: str | None = None) -> None:
        super().__init__()
        self.attention = build_bidirectional(attention or paper_attention(dim), dim)
        self.gamma = nn.Parameter(torch.zeros(1))  # not a scalar: FSDP cannot shard one

    def forward(self, maps: Tensor) -> Tensor:
        """(b,dim,height,width) → the same."""
        rows = maps.flatten(2).transpose(1, 2)
        looked: Tensor = self.attention(rows)
        return maps + self.gamma * looked.transpose(1, 2).reshape(maps.shape)


def paper_attention(dim: int) -> str:
    """The mechanism of the paper by name: one head, keys and values of dim / 8 channels, scores that are not scaled."""
    inside = max(1, dim // 8)
    return f"multihead(num_heads=1, key_dim={inside}, value_dim={inside}, scale=1.0)"
