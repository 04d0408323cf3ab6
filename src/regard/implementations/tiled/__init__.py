"""`tiled`: plain torch, strip by strip, in memory linear in the length, for every request."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.core.autocast import without_autocast
from regard.core.differentiate import transforming
from regard.core.dropout import draw_seed
from regard.core.request import Request
from regard.implementations.packing import pack
from regard.implementations.tiled import op as op  # registers the operator
from regard.implementations.tiled.transforms import Tiled

name = "tiled"


def refuse(request: Request) -> str | None:
    """Why this request cannot run here: strips run everything but forward-mode derivatives."""
    if request.forward_mode:
        return "an operator has no forward-mode derivative"
    if torch.compiler.is_compiling() and transforming():
        return "torch.compile cannot trace an operator inside a transform of torch.func"
    return None


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
    request: Request,
    grad: Tensor,
    grad_logsumexp: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    needed: list[bool],
) -> list[Tensor]:
    """The share of these keys in the gradients of softmax over more keys, whose output and log-sum-exp are given.

    Of the query, the key, the value, the sink (which must be None) and each tensor of the request.
    """
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    tensors, spec = pack(request)
    found: list[Tensor] = torch.ops.regard.tiled_backward.default(
        grad, grad_logsumexp, request.query, request.key, request.value, None, seed, tensors, spec, request.scale,
        request.dropout, needed, output, logsumexp,
    )  # fmt: skip
    return found
