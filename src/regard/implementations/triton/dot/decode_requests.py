"""Which requests for a few queries over a long cache `decode.py` can run, and with which options."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.formula.request import FEW_QUERIES, Request
from regard.implementations.triton.dot.decode import decode
from regard.implementations.triton.launch.kernel_work import laid_out
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import LengthsMask, PaddingMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.scores.additive import AdditiveScore
from regard.scores.dot import SoftcapScore


def few_queries(request: Request) -> tuple[Tensor, Tensor] | None:
    """The output and log-sum-exp of a request for few queries without gradients; None if `decode` cannot run it."""
    if request.sizes[2] > FEW_QUERIES or request.needs_grad or request.bias is not None or request.dropout > 0:
        return None
    if isinstance(request.score, AdditiveScore):
        return None
    options: dict[str, Any] = {}
    if request.mask is not None and not _add_options(request.mask, request, options):
        return None
    cap = request.score.cap if isinstance(request.score, SoftcapScore) else 0.0
    query, key, value = (laid_out(rows) for rows in (request.query, request.key, request.value))
    return decode(query, key, value, request.scale, cap=cap, sink=request.sink, **options)


def _add_options(mask: Mask, request: Request, options: dict[str, Any]) -> bool:
    """Add the options of `decode` that express a mask; False where there are none."""
    batch = request.sizes[0]
    if isinstance(mask, And):
        return _add_options(mask.left, request, options) and _add_options(mask.right, request, options)
    new: dict[str, Any] = {}
    if isinstance(mask, LengthsMask) and mask.query_lengths is None:
        lengths = mask.key_lengths
        new["high"] = (lengths if lengths.dtype == torch.int64 else lengths.to(torch.int32)).expand(batch)
    elif isinstance(mask, PaddingMask) and mask.query_keep is None:
        new["keep"] = mask.keep_keys.expand(batch, -1)
    elif isinstance(mask, (CausalMask, WindowMask)) and _aligned_at_end(mask, request):
        new["after"] = 0 if isinstance(mask, CausalMask) else mask.reach
        if isinstance(mask, WindowMask):
            new["before"] = mask.before
    elif not isinstance(mask, FullMask):
        return False
    if any(name in options for name in new):
        return False
    options.update(new)
    return True


def _aligned_at_end(mask: CausalMask | WindowMask, request: Request) -> bool:
    """Whether the last query aligns with the last key, as `decode` assumes."""
    return mask.offset is None and (mask.align == "bottom-right" or request.sizes[2] == request.sizes[3])
