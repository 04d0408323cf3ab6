"""`tiled` where autograd records it: a function that holds the values of its request.

Tensors are saved as autograd wants it, those of the values too, so that hooks on saved tensors see them and a change in
place is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.formula.request import Request
from regard.implementations.packing import filled, outline, recorded_backward, spec_of
from regard.implementations.tiled import passes
from regard.support.autocast import without_autocast
from regard.support.tracing import unobserved


def attend(request: Request, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """`passes.forward`, recorded."""
    output, logsumexp = RecordedTiled.apply(
        request, seed, request.query, request.key, request.value, request.sink, *request.value_tensors()
    )
    return output, logsumexp


class RecordedTiled(torch.autograd.Function):
    """The passes of `tiled`, and the formula where the backward pass is recorded itself."""

    @staticmethod
    def forward(ctx: Any, request: Request, seed: Tensor | None, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.outline, ctx.numbers = outline(request), (request.scale, request.dropout, request.want_logsumexp)
        ctx.save_for_backward(seed, *inputs)
        return passes.forward(request, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_logsumexp: Tensor) -> tuple[Any, ...]:
        seed, *inputs = ctx.saved_tensors
        query, key, value, sink, *tensors = inputs
        scale, dropout, want_logsumexp = ctx.numbers
        upstream = grad_logsumexp if want_logsumexp else None
        needed = list(ctx.needs_input_grad[2:])
        grads: Sequence[Tensor | None]
        with without_autocast(query.device):  # backward() may be called where autocast is on
            if torch.is_grad_enabled():
                spec = spec_of(*ctx.outline)
                return (None, None, *recorded_backward(inputs, seed, spec, scale, dropout, grad, upstream))
            if unobserved():
                values = filled(ctx.outline, tensors)
                request = Request(query, key, value, *values, scale, dropout, sink, want_logsumexp)
                grads = passes.backward(request, seed, grad, upstream, needed)
            else:
                numbers = (spec_of(*ctx.outline), scale, dropout, needed)
                grads = torch.ops.regard.tiled_backward.default(
                    grad, upstream, query, key, value, sink, seed, tensors, *numbers
                )
        return (None, None, *[part if need else None for part, need in zip(grads, needed, strict=True)])
