"""Changes that a picture survives, drawn anew for each batch of training, so that small data teach more.

Each takes pictures (b,channels,height,width) and draws for each of them apart, from `generator` alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST, LARGEST = 0.02, 0.2  # the share of a picture's area that is erased
FLATTEST = 0.3  # height over width of what is erased, at least; at most its inverse


def shifted(pictures: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Each picture moved by up to `most` pixels up or down and left or right; what comes in is 0."""
    count, _, height, width = pictures.shape
    down, right = torch.randint(2 * most + 1, (2, count), generator=generator)
    framed = F.pad(pictures, (most, most, most, most))
    rows = down[:, None] + torch.arange(height)
    columns = right[:, None] + torch.arange(width)
    indices = torch.arange(count)[:, None, None]
    return framed[indices, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flipped(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Every other picture, by chance, as in a mirror."""
    mirrored = torch.rand(len(pictures), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)


def erased(pictures: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """With probability `share`, a rectangle of each picture set to 0 (Zhong et al. 2020)."""
    count, _, height, width = pictures.shape
    chance, area, ratio, top, left = torch.rand(5, count, generator=generator)
    area = (SMALLEST + (LARGEST - SMALLEST) * area) * height * width
    ratio = FLATTEST ** (2 * ratio - 1)
    high = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top, left = (top * (height - high + 1)).floor(), (left * (width - wide + 1)).floor()
    rows, columns = torch.arange(height), torch.arange(width)
    inside_rows = (rows >= top[:, None]) & (rows < (top + high)[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < (left + wide)[:, None])
    hidden = inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
    return pictures.masked_fill(hidden & (chance < share)[:, None, None, None], 0)
