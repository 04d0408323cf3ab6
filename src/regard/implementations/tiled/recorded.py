"""`tiled` as functions of autograd: one that holds the values of its request, and one inside of `torch.func`.

Tensors are saved as autograd wants it, those of the values too, so that hooks on saved tensors see them and a change in
place is noticed.

Inside the transforms of `torch.func` (grad, vjp, jacrev, vmap and any nesting of them) the operator is called. It has
no rules for them, but an `autograd.Function` with `setup_context` and `vmap` has: so the operator is wrapped in one,
and its backward operator in another. Forward-mode transforms (jvp, jacfwd) and the second derivative go through the
reference, in ordinary torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.formula.request import Request
from regard.implementations import reference
from regard.implementations.packing import filled, outline, recorded_backward, spec_of, unpack
from regard.implementations.tiled import passes
from regard.support.autocast import without_autocast
from regard.support.tracing import unobserved

Tensors = tuple[Tensor, ...]


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
        return (None, None, *[gradient if need else None for gradient, need in zip(grads, needed, strict=True)])


class Tiled(torch.autograd.Function):
    """The operator `regard::tiled`, with the tensors of the values last."""

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None,
        seed: Tensor | None,
        spec: str,
        scale: float,
        dropout: float,
        want_logsumexp: bool,
        *tensors: Tensor,
    ) -> Tensors:
        outputs: Tensors = torch.ops.regard.tiled.default(
            query, key, value, sink, seed, list(tensors), spec, scale, dropout, want_logsumexp
        )
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        query, key, value, sink, seed, *ctx.rest = inputs[:9]
        ctx.save_for_backward(query, key, value, sink, seed, *inputs[9:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_logsumexp: Tensor) -> tuple[Any, ...]:
        query, key, value, sink, seed, *tensors = ctx.saved_tensors
        spec, scale, dropout, want_logsumexp = ctx.rest
        flags = [*ctx.needs_input_grad[:4], *ctx.needs_input_grad[9:]]
        needed = "".join("1" if flag else "0" for flag in flags)
        upper = grad_logsumexp if want_logsumexp else None
        gradients = TiledBackward.apply(
            grad, upper, query, key, value, sink, seed, spec, scale, dropout, needed, *tensors
        )
        needed_gradients = [gradient if flag else None for gradient, flag in zip(gradients, flags, strict=True)]
        return (*needed_gradients[:4], None, None, None, None, None, *needed_gradients[4:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensors, tuple[int, ...]]:
        return _each(Tiled, info, in_dims, inputs)


class TiledBackward(torch.autograd.Function):
    """The operator `regard::tiled_backward`; `needed` says by 1 and 0 which gradients are asked for."""

    @staticmethod
    def forward(
        grad: Tensor,
        grad_logsumexp: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None,
        seed: Tensor | None,
        spec: str,
        scale: float,
        dropout: float,
        needed: str,
        *tensors: Tensor,
    ) -> Tensors:
        with without_autocast(query.device):
            flags = [flag == "1" for flag in needed]
            inputs = (query, key, value, sink, seed, list(tensors), spec, scale, dropout)
            return tuple(torch.ops.regard.tiled_backward.default(grad, grad_logsumexp, *inputs, flags))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *saved, ctx.spec, ctx.scale, ctx.dropout, ctx.needed = inputs[:11]
        ctx.save_for_backward(*saved, *inputs[11:])

    @staticmethod
    def backward(ctx: Any, *upper: Tensor) -> tuple[Any, ...]:
        """The derivative of the reference's gradient, through `torch.func`, so that it can be differentiated again."""
        grad, grad_logsumexp, query, key, value, sink, seed, *tensors = ctx.saved_tensors
        inputs = [query, key, value, sink, *tensors]
        moving = [n for n, tensor in enumerate(inputs) if tensor is not None and tensor.is_floating_point()]
        wanted = [n for n, flag in enumerate(ctx.needed) if flag == "1"]
        heads = [grad] if grad_logsumexp is None else [grad, grad_logsumexp]

        def result(*moved: Tensor) -> Tensors:
            arguments: list[Any] = list(inputs)
            for n, tensor in zip(moving, moved, strict=True):
                arguments[n] = tensor
            query, key, value, sink, *values = arguments
            request = unpack(query, key, value, sink, values, ctx.spec, ctx.scale, ctx.dropout, len(heads) == 2)
            output, logsumexp = reference.compute(request, seed)
            return (output,) if logsumexp is None else (output, logsumexp)

        def gradients(*arguments: Tensor) -> Tensors:
            pull = torch.func.vjp(result, *arguments[len(heads) :])[1]
            gradients_of_inputs = pull(arguments[: len(heads)])
            return tuple(gradients_of_inputs[moving.index(n)] for n in wanted)

        with without_autocast(query.device):
            pull = torch.func.vjp(gradients, *heads, *[inputs[n] for n in moving])[1]
            second_order = pull(tuple(upper[n] for n in wanted))
        to_heads = [*second_order[: len(heads)], None][:2]
        by_input = dict(zip(moving, second_order[len(heads) :], strict=True))
        to_inputs = [by_input.get(n) for n in range(len(inputs))]
        return (*to_heads, *to_inputs[:4], None, None, None, None, None, *to_inputs[4:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensors, tuple[int, ...]]:
        return _each(TiledBackward, info, in_dims, inputs)


def _each(
    function: type[torch.autograd.Function], info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]
) -> tuple[Tensors, tuple[int, ...]]:
    """One call for each entry of the mapped axis: weights, masks and biases may be mapped too, in any combination."""
    by_entry = []
    for n in range(info.batch_size):
        chosen = [
            argument if axis is None else argument.select(axis, n)
            for argument, axis in zip(inputs, in_dims, strict=True)
        ]
        by_entry.append(function.apply(*chosen))
    stacked = tuple(torch.stack(outputs) for outputs in zip(*by_entry, strict=True))
    return stacked, (0,) * len(stacked)
