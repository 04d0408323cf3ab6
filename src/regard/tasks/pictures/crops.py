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
    where = torch.zeros(size, 2, 3)
    where[:, 0, 0], where[:, 1, 1] = scale * sign, scale
    where[:, :, 2] = move.T
    grid = F.affine_grid(where, list(pictures.shape), align_corners=False)
    found = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    contrast = 1 + LIGHT * (2 * draws[4] - 1)
    brightness = LIGHT * (2 * draws[5] - 1)
    mean = found.mean((1, 2, 3), keepdim=True)
    changed = (found - mean) * contrast[:, None, None, None] + mean + brightness[:, None, None, None]
    return changed.clamp(0, 1)
