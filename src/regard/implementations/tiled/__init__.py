"""`tiled`: plain torch, strip by strip, in memory linear in the length, for every request."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.formula.call import Call
from regard.formula.dropout import draw_seed
from regard.formula.request import Request, build
from regard.implementations import sdpa
from regard.implementations.packing import pack
from regard.implementations.tiled import op as op  # registers the operator
from regard.implementations.tiled.transforms import Tiled
from regard.support.autocast import without_autocast
from regard.support.differentiate import transforming
from regard.support.tracing import only_standard_operators

name = "tiled"


def refuse(request: Request) -> str | None:
    """Why this request cannot run here: strips run everything but forward-mode derivatives."""
    if request.forward_mode:
        return "an operator has no forward-mode derivative"
    if torch.compiler.is_compiling() and transforming():
        return "torch.compile cannot trace an operator inside a transform of torch.func"
    if only_standard_operators():
        return "the program that is exported would need regard to run it"
    return None


def plain_runner(request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """How to run calls without options and with few keys on a CPU, where an operator takes longer than its work."""
    few = request.sizes[3] < sdpa.SHORTEST_ROW and request.query.device.type == "cpu"
    return _run_short if few and request.query.shape[3] == request.value.shape[3] else None


def _run_short(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Over so few keys torch's kernel loses a NaN; finite numbers it may have, if no gradient is wanted of it."""
    keys = key.shape[2]
    if 0 < keys == value.shape[2] < sdpa.SHORTEST_ROW and query.numel() > 0:
        recorded = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        if not recorded and all(sdpa.is_bounded(rows) for rows in (query, key, value)):
            return scaled_dot_product_attention(
                query, key, value, enable_gqa=sdpa.as_bool(query.shape[1] != key.shape[1])
            )
    return run(build(Call(query, key, value)))[0]


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    """The output (b,h,q,v) and, if wanted, the log-sum-exp (b,h,q)."""
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    dtype = request.query.dtype
    with without_autocast(request.query.device):
        request = request.widened().reduced()
        tensors, spec = pack(request)
        inputs = (request.query, request.key, request.value, request.sink, seed)
        numbers = (spec, request.scale, request.dropout, request.want_logsumexp)
        if transforming():
            output, logsumexp = Tiled.apply(*inputs, *numbers, *tensors)
        else:
            output, logsumexp = torch.ops.regard.tiled.default(*inputs, tensors, *numbers)
    return output.to(dtype), logsumexp if request.want_logsumexp else None


def share_backward(
    request: Request, grad: Tensor, grad_logsumexp: Tensor, output: Tensor, logsumexp: Tensor, needed: list[bool]
) -> list[Tensor]:
    """The share of these keys in the gradients of softmax over more keys, whose output and log-sum-exp are given.

    Of the query, the key, the value, the sink (which must be None) and each tensor of the request.
    """
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    tensors, spec = pack(request)
    found: list[Tensor] = torch.ops.regard.tiled_backward.default(
        grad,
        grad_logsumexp,
        request.query,
        request.key,
        request.value,
        None,
        seed,
        tensors,
        spec,
        request.scale,
        request.dropout,
        needed,
        output,
        logsumexp,
    )
    return found
