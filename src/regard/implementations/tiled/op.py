"""`tiled` as one torch operator: forward, backward and shapes, so that `torch.compile` sees a single node.

Where nothing traces, transforms or watches, `tiled` calls the passes themselves: an operator takes no objects, so that
the values of a request travel as JSON and have to be built again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.formula import formula
from regard.implementations.packing import SCHEMA, recorded_backward, unpack
from regard.implementations.tiled import passes
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import take_one_by_one

_LIBRARY = torch.library.Library("regard", "DEF")
_LIBRARY.define(f"tiled({SCHEMA}, bool want_logsumexp) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"tiled_backward(Tensor grad, Tensor? grad_logsumexp, {SCHEMA}, bool[] needed, Tensor? output=None, "
    "Tensor? logsumexp=None) -> Tensor[]"
)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float, dropout: float, want_logsumexp: bool,
) -> tuple[Tensor, Tensor]:
    return passes.forward(unpack(query, key, value, sink, tensors, spec, scale, dropout, want_logsumexp), seed)


def forward_by_strips(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float, dropout: float, want_logsumexp: bool,
) -> tuple[Tensor, Tensor]:
    """What the operator computes, by strips in any case, whose products can be counted."""
    return passes.by_strips(unpack(query, key, value, sink, tensors, spec, scale, dropout, want_logsumexp), seed)


def _backward(
    grad: Tensor, grad_logsumexp: Tensor | None, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None,
    seed: Tensor | None, tensors: list[Tensor], spec: str, scale: float, dropout: float, needed: list[bool],
    output: Tensor | None = None, logsumexp: Tensor | None = None,
) -> list[Tensor]:
    request = unpack(query, key, value, sink, tensors, spec, scale, dropout)
    return passes.backward(request, seed, grad, grad_logsumexp, needed, output, logsumexp)


def _forward_shapes(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float, dropout: float, want_logsumexp: bool,
) -> tuple[Tensor, Tensor]:
    dtype = formula.accumulation_dtype(query.dtype)
    logsumexp = query.new_empty(query.shape[:3] if want_logsumexp else (0,), dtype=dtype)
    return query.new_empty(*query.shape[:3], value.shape[3]), logsumexp


def _backward_shapes(
    grad: Tensor, grad_logsumexp: Tensor | None, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None,
    seed: Tensor | None, tensors: list[Tensor], spec: str, scale: float, dropout: float, needed: list[bool],
    output: Tensor | None = None, logsumexp: Tensor | None = None,
) -> list[Tensor]:
    inputs = [query, key, value, query.new_zeros(0) if sink is None else sink, *tensors]
    return [
        torch.zeros_like(tensor) if need else tensor.new_zeros(0) for tensor, need in zip(inputs, needed, strict=True)
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    query, key, value, sink, seed, tensors, *ctx.rest = inputs
    ctx.save_for_backward(query, key, value, sink, seed, *tensors)


def _differentiate(ctx: Any, grad: Tensor, grad_logsumexp: Tensor) -> tuple[Any, ...]:
    query, key, value, sink, seed, *tensors = ctx.saved_tensors
    spec, scale, dropout, want_logsumexp = ctx.rest
    flags = ctx.needs_input_grad
    needed = [*flags[:4], *flags[5]]
    inputs = [query, key, value, sink, *tensors]
    upstream = grad_logsumexp if want_logsumexp else None
    with without_autocast(query.device):  # backward() may be called where autocast is on
        if torch.is_grad_enabled():
            gradients = recorded_backward(inputs, seed, spec, scale, dropout, grad, upstream)
        else:
            all_gradients = torch.ops.regard.tiled_backward.default(
                grad, upstream, query, key, value, sink, seed, tensors, spec, scale, dropout, needed
            )
            gradients = [gradient if need else None for gradient, need in zip(all_gradients, needed, strict=True)]
    return (*gradients[:4], None, gradients[4:], None, None, None, None)


_LIBRARY.impl("tiled", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("tiled_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::tiled", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::tiled_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::tiled", _differentiate, setup_context=_save, lib=_LIBRARY)
take_one_by_one("tiled_backward", _LIBRARY)
