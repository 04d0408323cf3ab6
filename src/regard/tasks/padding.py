"""Sequences of unequal length padded into one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(sequences: Sequence[Sequence[int] | Tensor], padding: int) -> tuple[Tensor, Tensor | None]:
    """Ids (b,n) and a padding mask (b,n), True = real; the mask is None if nothing is padded."""
    longest = max((len(sequence) for sequence in sequences), default=0)
    ids = torch.full((len(sequences), longest), padding, dtype=torch.long)
    keep = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        keep[row, : len(sequence)] = True
    return ids, None if bool(keep.all()) else keep
