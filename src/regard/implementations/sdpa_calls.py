"""Repeated calls of torch's own kernels: functions that run calls of one signature without building a request.

`dispatch/repeated_calls.py` finds them. What a signature does not hold (the contents of tensors, how rows lie in
memory) is looked at here in each call, as `sdpa.run` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.formula.call import Repeated
from regard.formula.request import Request
from regard.implementations import sdpa
from regard.implementations.infinities import may_have_lost_rows, restore_nan_rows
from regard.implementations.sdpa import scaled_dot_product_attention  # torch's own, even if the name was patched
from regard.masks import Mask
from regard.masks.from_tensors import dense_mask
from regard.masks.positional import CausalMask, FullMask
from regard.support.differentiate import forbid_second_derivative

_KERNEL = "torch's fused attention"


def bind(request: Request) -> Repeated | None:
    """How to run calls with the signature of this request again; None where they need one."""
    mask = request.mask
    if request.dropout > 0 or not sdpa.takes_rows(request):
        return None
    options: dict[str, Any] = {}  # only those that differ from the default: each costs time
    if request.query.shape[1] != request.key.shape[1]:
        options["enable_gqa"] = True
    if request.scale != 1 / math.sqrt(request.query.shape[3]):
        options["scale"] = request.scale
    if mask is None or isinstance(mask, FullMask) or _sees_all(mask, request):
        return _plain(request, options)
    if isinstance(mask, CausalMask):
        return _plain(request, {**options, "is_causal": True}) if sdpa.is_square(mask, request) else None
    return _padded(request, options) if mask.by_key and request.query.is_cpu else None


def _sees_all(mask: Mask, request: Request) -> bool:
    """Whether one query sees every key, however many there are: the last position of a causal mask."""
    aligned = isinstance(mask, CausalMask) and mask.offset is None and mask.align == "bottom-right"
    return aligned and request.sizes[2] == 1


def _plain(request: Request, options: dict[str, Any]) -> Repeated:
    """Calls that torch's function takes as they are."""
    trains, on_cpu = request.needs_grad, request.query.is_cpu
    planned: set[int] = set()  # numbers of keys for which torch may choose any kernel by now

    def run(query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Tensor:
        if query.stride()[3] != 1 or key.stride()[3] != 1 or value.stride()[3] != 1:
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        if on_cpu:
            output = scaled_dot_product_attention(query, key, value, **options)
            if may_have_lost_rows(output):
                output = restore_nan_rows(output, scaled_dot_product_attention, query, key, value, options)
        elif key.shape[2] in planned:
            output = scaled_dot_product_attention(query, key, value, **options)
        else:
            output = sdpa.call_kernel(query, key, value, options)
            if sdpa.seen_often(query, key, value, options):
                planned.add(key.shape[2])
        if trains:
            forbid_second_derivative(output, _KERNEL)
        return output

    return run


def _padded(request: Request, options: dict[str, Any]) -> Repeated:
    """Calls on a CPU whose mask hides keys from all queries. Its structure is fixed, the number of keys need not be."""
    trains, (batch, heads, queries, _) = request.needs_grad, request.sizes
    bounded = sdpa.has_bounded_norm

    def run(query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        mask: Mask = given["mask"] if isinstance(given["mask"], Mask) else dense_mask(given["mask"])
        keys = key.shape[2]
        sizes = (batch, heads, queries, keys)
        mask.check(sizes)
        mask.check_contents(sizes)
        if query.stride()[3] != 1 or key.stride()[3] != 1 or value.stride()[3] != 1:
            return None
        # Scores of bounded rows are finite, so that no row of NaN can be lost either.
        if not (bounded(query) and bounded(key) and bounded(value)):
            return None
        visible = mask.real_keys(keys, batch, query.device).reshape(-1, 1, 1, keys)
        if visible.shape[0] != batch:
            visible = visible.expand(batch, -1, -1, -1)
        output = scaled_dot_product_attention(query, key, value, visible, **options)
        if trains:
            forbid_second_derivative(output, _KERNEL)
        return output

    return run
