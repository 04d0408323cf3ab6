"""`tiled`: plain torch, strip by strip, in memory linear in the length, for every request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.formula.call import Call, Repeated
from regard.formula.dropout import draw_seed
from regard.formula.request import Request
from regard.implementations.packing import pack
from regard.implementations.tiled import banded, passes, recorded
from regard.implementations.tiled import op as op  # registers the operator
from regard.implementations.tiled.layout import LayoutKey, kept_layout, key_of
from regard.masks.from_tensors import dense_mask
from regard.masks.positional import CausalMask
from regard.support.autocast import without_autocast
from regard.support.differentiate import transforming
from regard.support.tracing import only_standard_operators, unobserved
from regard.values.grid import Sizes

name = "tiled"
_PLAIN = {Tensor, Parameter}


def refuse(request: Request) -> str | None:
    """Why this request cannot run here: strips run everything but forward-mode derivatives."""
    if request.forward_mode:
        return "an operator has no forward-mode derivative"
    if torch.compiler.is_compiling() and transforming():
        return "torch.compile cannot trace an operator inside a transform of torch.func"
    if only_standard_operators():
        return "the program that is exported would need regard to run it"
    return None


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    """The output (b,h,q,v) and, if wanted, the log-sum-exp (b,h,q)."""
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    dtype = request.query.dtype
    with without_autocast(request.query.device):
        request = request.widened().reduced()
        if unobserved() and _are_plain(request.inputs()):
            output, logsumexp = (recorded.attend if request.needs_grad else passes.forward)(request, seed)
        else:
            output, logsumexp = _as_operator(request, seed)
    return output.to(dtype), logsumexp if request.want_logsumexp else None


def _are_plain(tensors: list[Tensor]) -> bool:
    """Whether no tensor is of a class that may change what torch's functions do."""
    return {type(tensor) for tensor in tensors} <= _PLAIN


def _as_operator(request: Request, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    tensors, spec = pack(request)
    inputs = (request.query, request.key, request.value, request.sink, seed)
    numbers = (spec, request.scale, request.dropout, request.want_logsumexp)
    if transforming():
        output, logsumexp = recorded.Tiled.apply(*inputs, *numbers, *tensors)
    else:
        output, logsumexp = torch.ops.regard.tiled.default(*inputs, tensors, *numbers)
    return output, logsumexp


def repeated(call: Call, request: Request) -> Repeated | None:
    """How to run calls of the same signature again; None where they need a request of their own."""
    if not request.query.is_cpu or request.score.transforms:
        return None
    mask, nothing = request.mask, torch.empty(0)
    varies = mask is not None and bool(mask.tensors)
    score = request.score.reduce(request.query, request.key, guarded=mask is not None)[0]
    pattern = replace(request, query=nothing, key=nothing, value=nothing, score=score, mask=None if varies else mask)
    by_length = mask is not None and (mask.by_key or isinstance(mask, CausalMask))
    by_bands = banded.bands_of(request) is not None
    layout = None if by_bands else key_of(request, request.dropout > 0)
    return _Repeating(pattern, request.sizes, varies, by_length, request.needs_grad, layout).run


@dataclass(slots=True)
class _Repeating:
    """How calls with the signature of an earlier one run."""

    pattern: Request  # without queries, keys and values, and without a mask that holds tensors: a call brings them
    sizes: Sizes
    mask_varies: bool
    by_length: bool  # torch's kernels may take the mask for another number of keys
    trains: bool
    layout: LayoutKey | None  # where strips compute without being recorded

    def run(self, query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Any:
        mask, sizes, pattern = self.pattern.mask, self.sizes, self.pattern
        if self.mask_varies:
            mask = given["mask"]
            mask = dense_mask(mask) if isinstance(mask, Tensor) else mask
            for tensor in mask.tensors:
                if type(tensor) is not Tensor:
                    return None
            mask.check_contents(sizes)
        same_length = key.shape[2] == sizes[3]
        if not same_length and mask is not None:  # one query, whose signature holds no number of keys
            if self.by_length:
                return None
            sizes = (*sizes[:3], key.shape[2])
            mask.check(sizes)
            mask.check_contents(sizes)
        request = replace(pattern, query=query, key=key, value=value, mask=mask)
        seed = draw_seed(query.device) if pattern.dropout > 0 else None
        if self.trains:
            output, logsumexp = recorded.attend(request, seed)
        elif self.layout is not None and same_length:
            output, logsumexp = passes.by_strips(request, seed, kept_layout(self.layout))
        else:
            output, logsumexp = passes.forward(request, seed)
        return (output, logsumexp) if pattern.want_logsumexp else output


def share_backward(
    request: Request, grad: Tensor, grad_logsumexp: Tensor, output: Tensor, logsumexp: Tensor, needed: list[bool]
) -> list[Tensor]:
    """The share of these keys in the gradients of softmax over more keys, whose output and log-sum-exp are given.

    Of the query, the key, the value, the sink (which must be None) and each tensor of the request.
    """
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    if unobserved() and not torch.is_grad_enabled():
        return passes.backward(request, seed, grad, grad_logsumexp, needed, output, logsumexp)
    tensors, spec = pack(request)
    inputs = (request.query, request.key, request.value, None, seed, tensors, spec, request.scale, request.dropout)
    grads: list[Tensor] = torch.ops.regard.tiled_backward.default(
        grad, grad_logsumexp, *inputs, needed, output, logsumexp
    )
    return grads
