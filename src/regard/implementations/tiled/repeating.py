"""Calls of `tiled` that repeat, on a CPU: straight from the arguments to the strips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.formula.call import Repeated
from regard.formula.dropout import draw_seed
from regard.formula.request import Request
from regard.implementations.tiled import passes, recorded
from regard.masks.from_tensors import dense_mask
from regard.masks.positional import CausalMask


def bind(request: Request) -> Repeated | None:
    """How to run calls with the signature of this request again; None where they need one."""
    if not request.query.is_cpu or request.score.transforms:
        return None
    batch, heads, queries, first_keys = request.sizes
    score = request.score.reduce(request.query, request.key, guarded=request.mask is not None)[0]
    # A mask with tensors is that of each call; only its structure is part of a signature.
    fixed, varies = request.mask, request.mask is not None and bool(request.mask.tensors)
    # torch's kernels take these for some numbers of keys.
    by_length = fixed is not None and (fixed.by_key or isinstance(fixed, CausalMask))
    if varies:
        fixed = None
    bias, normalizer, scale = request.bias, request.normalizer, request.scale
    dropout, want_logsumexp = request.dropout, request.want_logsumexp
    compute = recorded.attend if request.needs_grad else passes.forward
    del request

    def run(query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Any:
        mask, keys = fixed, key.shape[2]
        if varies:
            mask = given["mask"]
            mask = dense_mask(mask) if isinstance(mask, Tensor) else mask
            for tensor in mask.tensors:
                if type(tensor) is not Tensor:
                    return None
            mask.check_contents((batch, heads, queries, keys))
        elif keys != first_keys and mask is not None:  # one query, whose signature holds no number of keys
            if by_length:
                return None
            mask.check((batch, heads, queries, keys))
            mask.check_contents((batch, heads, queries, keys))
        again = Request(
            query, key, value, score, mask, bias, normalizer, scale, dropout, sink=None, want_logsumexp=want_logsumexp
        )
        output, logsumexp = compute(again, draw_seed(query.device) if dropout > 0 else None)
        return (output, logsumexp) if want_logsumexp else output

    return run
