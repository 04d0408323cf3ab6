"""Sequences of unequal length padded into one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor


def padded(
    sequences: Sequence[Sequence[int] | Tensor], padding: int, multiple: int = 1, limit: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Ids (b,n) and a padding mask (b,n), True = real; the mask is None if nothing is padded.

    With `multiple` above 1, n is a multiple of it, but at most `limit` or the longest sequence, and there is always a
    mask: the tensors of many batches then have the same names and shapes.
    """
    sizes = [len(sequence) for sequence in sequences]
    longest = max(sizes, default=0)
    width = max(longest, min(-(-longest // multiple) * multiple, limit or longest))
    ids = torch.full((len(sizes), width), padding, dtype=torch.long)
    keep = torch.arange(width) < torch.tensor(sizes, dtype=torch.long)[:, None]
    # All at once: a loop over rows takes most of the time of a batch.
    ids[keep] = _joined(sequences)
    return ids, None if multiple == 1 and min(sizes, default=0) == longest else keep


def _joined(sequences: Sequence[Sequence[int] | Tensor]) -> Tensor:
    """All ids one after the other."""
    if any(isinstance(sequence, Tensor) for sequence in sequences):
        return torch.cat([torch.as_tensor(sequence, dtype=torch.long) for sequence in sequences])
    return torch.tensor(list(chain.from_iterable(sequences)), dtype=torch.long)
