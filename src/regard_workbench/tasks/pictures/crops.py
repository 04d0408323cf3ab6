"""Training pictures seen a little differently each time: shifted, larger or smaller, mirrored, brighter or darker.

>>> import torch
>>> varied(torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(1)).shape
torch.Size([2, 3, 8, 8])
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = 0.7  # the smallest part of a side that is kept
LIGHT = 0.25  # the largest change of brightness and of contrast


def varied(pictures: Tensor, generator: torch.Generator, mirror: bool = True) -> Tensor:
    """Of each picture (b,channels,h,w) from 0 to 1 a part, brought to the old size and mirrored half of the times.

    Brightness and contrast change, too. All randomness comes from `generator`.
    """
    size = len(pictures)
    draws = torch.rand(6, size, generator=generator)
    scale = SMALLEST + (1 - SMALLEST) * draws[0]
    sign = torch.where(draws[1] < 0.5, -1.0, 1.0) if mirror else torch.ones(size)
    move = (1 - scale) * (2 * draws[2:4] - 1)  # the part stays inside the picture
    rows, columns = (
        (2 * torch.arange(count) + 1) / count - 1 for count in pictures.shape[2:]
    )  # the centres of the pixels, from −1 to 1
    grid = torch.empty(size, *pictures.shape[2:], 2)
    grid[..., 0] = ((scale * sign)[:, None] * columns + move[0][:, None])[:, None]
    grid[..., 1] = (scale[:, None] * rows + move[1][:, None])[:, :, None]
    crops = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    contrast = (1 + LIGHT * (2 * draws[4] - 1))[:, None, None, None]
    brightness = (LIGHT * (2 * draws[5] - 1))[:, None, None, None]
    # In place, since this takes as long as the rest: mean + contrast (picture − mean) + brightness.
    moved = (1 - contrast) * crops.mean((1, 2, 3), keepdim=True) + brightness
    return crops.mul_(contrast).add_(moved).clamp_(0, 1)
