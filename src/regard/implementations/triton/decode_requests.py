"""A few queries over a long cache: which requests the split kernel of `decode.py` can run, and how."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.request import Request
from regard.implementations.triton.decode import decode
from regard.implementations.triton.launch import laid_out
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import LengthsMask, PaddingMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.scores.additive import AdditiveScore
from regard.scores.dot import SoftcapScore

_MOST_QUERIES = 16  # as many as one tile of the kernel holds


def few_queries(request: Request) -> tuple[Tensor, Tensor] | None:
    """The output and log-sum-exp of a request for few queries without gradients; None where it is not one."""
    if (
        request.sizes[2] > _MOST_QUERIES
        or request.needs_grad
        or request.bias is not None
        or request.dropout > 0
    ):
        return None
    if isinstance(request.score, AdditiveScore):
        return None
    options: dict[str, Any] = {}
    if request.mask is not None and not _say(request.mask, request, options):
        return None
    cap = request.score.cap if isinstance(request.score, SoftcapScore) else 0.0
    query, key, value = (laid_out(rows) for rows in (request.query, request.key, request.value))
    return decode(query, key, value, request.scale, cap=cap, sink=request.sink, **options)


def _say(mask: Mask, request: Request, options: dict[str, Any]) -> bool:
    """Put a mask into words of `decode`; False where it has none."""
    batch = request.sizes[0]
    if isinstance(mask, And):
        return _say(mask.left, request, options) and _say(mask.right, request, options)
    said: dict[str, Any] = {}
    if isinstance(mask, LengthsMask) and mask.query_lengths is None:
        said["high"] = mask.key_lengths.to(torch.int32).expand(batch)
    elif isinstance(mask, PaddingMask) and mask.query_keep is None:
        said["keep"] = mask.keep_keys.expand(batch, -1)
    elif isinstance(mask, (CausalMask, WindowMask)) and _at_the_end(mask, request):
        said["after"] = 0 if isinstance(mask, CausalMask) else mask.reach
        if isinstance(mask, WindowMask):
            said["before"] = mask.before
    elif not isinstance(mask, FullMask):
        return False
    if any(word in options for word in said):
        return False
    options.update(said)
    return True


def _at_the_end(mask: CausalMask | WindowMask, request: Request) -> bool:
    """Whether the last query stands at the last key, as `decode` takes it."""
    return mask.offset is None and (mask.align == "bottom-right" or request.sizes[2] == request.sizes[3])
