"""Restore the NaN rows that torch's CPU kernels lose when scores are infinite.

A row with a score of +inf is NaN, since exp(inf − inf) is. In half precision torch's kernel (2.13) loses that NaN when
it searches the largest score, and returns zeros, which promise 1 reserves for rows that see nothing. In every dtype it
returns zeros where all scores of a row are −inf because its query, or all its keys, are infinite.

Searching all inputs for infinities would cost as much as a step of decoding. The output is smaller: only if one of its
rows is all zeros are the inputs examined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.scores.base import spread_heads
from regard.support.arguments import readable

Kernel = Callable[..., Tensor]

_HALVES = (torch.float16, torch.bfloat16)
_FAR_FROM_OVERFLOW = 1e38
_FEW = 2048


def restore_nan_rows(
    output: Tensor, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Tensor:
    """`output` (b,h,q,v), which `kernel` computed from these arguments, with NaN in rows of non-finite scores."""
    if not output.is_cpu:
        return output
    scale, bias = options.get("scale"), options.get("attn_mask")
    if not readable(output):
        return _with_nan_rows(output, query, key, scale, bias) if output.dtype in _HALVES else output
    if not may_have_lost_rows(output) or not _has_row_of_zeros(output):
        return output
    if _all_scores_finite(query, key, scale) and (
        bias is None or bias.dtype == torch.bool or float(bias.max()) < torch.inf
    ):
        return output
    wide = torch.promote_types(output.dtype, torch.float32)
    nonfinite = ~query.detach().isfinite().all(-1, keepdim=True)  # all scores of such a row are infinite or NaN
    if bias is not None and bias.dtype != torch.bool:
        options = {**options, "attn_mask": bias.to(wide)}
    query = query.to(wide).masked_fill(nonfinite, torch.nan)
    again = kernel(query, key.to(wide), value.to(wide), **options).to(output.dtype)
    return _with_nan_rows(again, query, key, scale, bias) if _has_row_of_zeros(again) else again


def may_have_lost_rows(output: Tensor) -> bool:
    """Whether a row of a readable `output` may be all zeros, by the cheapest test."""
    # A row of zeros starts with a zero. To take the first column out of a few numbers takes longer than to count all.
    looked = output if output.numel() <= _FEW else output.select(3, 0)
    return looked.count_nonzero().item() != looked.numel()


def _has_row_of_zeros(output: Tensor) -> bool:
    return bool((output == 0).all(-1).any())


def _all_scores_finite(query: Tensor, key: Tensor, scale: float | None) -> bool:
    """Whether no score can be infinite or NaN: |q·k| is at most the product of the norms of all queries and keys."""
    largest = max(1.0, abs(scale or 0.0))
    for rows in (query, key):
        wide = torch.promote_types(rows.dtype, torch.float32)
        largest *= float(torch.linalg.vector_norm(rows.detach(), dtype=wide))
    return largest < _FAR_FROM_OVERFLOW


def _with_nan_rows(output: Tensor, query: Tensor, key: Tensor, scale: float | None, bias: Tensor | None) -> Tensor:
    """`output` with NaN in rows of zeros whose scores may be non-finite, by a bound from norms.

    (A row of zero values that does not see the infinite key becomes NaN too.)
    """
    wide = torch.promote_types(output.dtype, torch.float32)
    norms = torch.linalg.vector_norm(key, dim=-1, dtype=wide).amax(-1)[..., None, None]  # (b,g,1,1)
    bound = spread_heads(norms, query.shape[1]) * max(1.0, abs(scale or 0.0))
    bound = bound * torch.linalg.vector_norm(query, dim=-1, keepdim=True, dtype=wide)
    nonfinite = ~(bound < _FAR_FROM_OVERFLOW)
    if bias is not None and bias.dtype == torch.bool:
        nonfinite = nonfinite & bias.any(-1, keepdim=True)
    elif bias is not None:
        highest = bias.amax(-1, keepdim=True)
        nonfinite = (nonfinite & (highest != -torch.inf)) | ~(highest < torch.inf)
    return output.masked_fill(nonfinite & (output == 0).all(-1, keepdim=True), torch.nan)
