"""Words in groups of similar ones: k-means over the directions of their vectors, without anything random."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 12
NONE = -1  # the group of a word without a vector


def clusters(vectors: Tensor, count: int) -> Tensor:
    """The group, 0 to count − 1, of each of the vectors (n,width); −1 where a vector is zero.

    Groups begin at the directions of the first words, which are the most frequent, so that nothing is random.
    """
    lengths = vectors.norm(dim=1, keepdim=True)
    real = lengths[:, 0] > 0
    rows = (vectors / lengths.clamp(min=1e-9))[real]
    groups = torch.full((len(vectors),), NONE)
    if not len(rows):
        return groups
    centres = rows[:count].clone()
    nearest = torch.zeros(len(rows), dtype=torch.long)
    for _ in range(ROUNDS):
        nearest = (rows @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        size = sums.norm(dim=1, keepdim=True)
        centres = torch.where(size > 0, sums / size.clamp(min=1e-9), centres)
    groups[real] = nearest
    return groups
