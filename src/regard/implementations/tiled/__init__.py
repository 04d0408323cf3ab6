"""`tiled`: plain torch, strip by strip, in memory linear in the length, for every request."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.formula.call import Call, Repeated
from regard.formula.dropout import draw_seed
from regard.formula.request import Request
from regard.implementations.packing import pack
from regard.implementations.tiled import op as op  # registers the operator
from regard.implementations.tiled import passes, recorded, repeating
from regard.implementations.tiled.transforms import Tiled
from regard.support.autocast import without_autocast
from regard.support.differentiate import transforming
from regard.support.tracing import only_standard_operators, unobserved

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
        output, logsumexp = Tiled.apply(*inputs, *numbers, *tensors)
    else:
        output, logsumexp = torch.ops.regard.tiled.default(*inputs, tensors, *numbers)
    return output, logsumexp


def repeated(call: Call, request: Request) -> Repeated | None:
    """How to run calls of the same signature again; None where they need a request."""
    return repeating.bind(request)


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
