"""Sequences of unequal length in one tensor, and where in it something stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(sequences: Sequence[Sequence[int] | Tensor], padding: int) -> tuple[Tensor, Tensor | None]:
    """The ids (b,n) and where they are real, (b,n); None where all are: full batches run without a mask."""
    longest = max((len(sequence) for sequence in sequences), default=0)
    ids = torch.full((len(sequences), longest), padding, dtype=torch.long)
    keep = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        keep[row, : len(sequence)] = True
    return ids, None if bool(keep.all()) else keep
