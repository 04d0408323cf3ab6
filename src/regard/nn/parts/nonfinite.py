"""Keep NaN and infinity in hidden rows out of the gradients of the maps that project them."""

from __future__ import annotations

import torch
from torch import Tensor


def zero_nonfinite(rows: Tensor, guarded: bool) -> tuple[Tensor, Tensor | None]:
    """Rows (b,length,dim) with zeros in place of non-finite rows, and which rows those were, (b,length).

    A mask keeps a hidden row out of the output, but 0 · NaN would still reach the gradient of the weights that project
    it. Without a mask (`guarded` is False) nothing is hidden, and the rows come back as they are, with None.
    """
    if not guarded:
        return rows, None
    nonfinite = ~rows.detach().isfinite().all(-1)
    return rows.masked_fill(nonfinite[..., None], 0), nonfinite


def restore_nonfinite(heads: Tensor, nonfinite: Tensor | None, real: Tensor | None = None) -> Tensor:
    """Projected rows (b,h,length,d) with NaN in the rows that `zero_nonfinite` replaced, so that visible ones show.

    Rows that are padding according to `real` (b,length) keep the zeros.
    """
    if nonfinite is None:
        return heads
    nonfinite = nonfinite if real is None else nonfinite & real
    return heads.masked_fill(nonfinite[:, None, :, None], torch.nan)
