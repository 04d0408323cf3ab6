"""The kernels as torch operators, so that `torch.compile` and `export` see single nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from regard.biases import Bias
from regard.formula.request import Request
from regard.implementations.packing import SCHEMA, pack, recorded_backward, spec_of, unpack_values
from regard.implementations.triton.additive import forward as additive
from regard.implementations.triton.additive import short as short_additive
from regard.implementations.triton.dot.launches import Backward, logsumexp_dtype, run_forward
from regard.implementations.triton.launch.block_sizes import SMALL
from regard.implementations.triton.launch.blocks import prepare
from regard.implementations.triton.launch.gradients import Gradients, of_additive, of_dot
from regard.implementations.triton.launch.kernel_work import KernelWork, laid_out
from regard.implementations.triton.launch.launching import on_device
from regard.scores.additive import AdditiveScore
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import for_one_gradient, take_one_by_one

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(f"fused({SCHEMA}) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"fused_backward(Tensor grad, Tensor? grad_logsumexp, Tensor output, Tensor logsumexp, {SCHEMA}, bool[] needed) "
    "-> Tensor[]"
)


def _work_of(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float, dropout: float,
) -> tuple[KernelWork, Bias | None]:
    score, mask, bias, _ = unpack_values(spec, tensors)
    prepared = prepare(mask, bias, (*query.shape[:3], key.shape[2]), query.device)
    return kernel_work(query, key, value, sink, seed, score, prepared, scale, dropout), bias


def kernel_work(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> KernelWork:
    """The work of kernels: rows in a dtype and a layout that they can read."""
    if SMALL:
        query, key, value = _for_kernels(query), _for_kernels(key), _for_kernels(value)
    return KernelWork(laid_out(query), laid_out(key), laid_out(value), *rest)


def _for_kernels(rows: Tensor) -> Tensor:
    """The interpreter computes with numpy, which has no bfloat16."""
    return rows.float() if SMALL and rows.dtype == torch.bfloat16 else rows


def _forward(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _run_forward(_work_of(query, *rest)[0], query.dtype)[:2]


def _run_forward(work: KernelWork, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    """The output, the log-sum-exp, and scores to keep for the backward pass, where that pays."""
    kept = None
    with on_device(work.query):
        if isinstance(work.score, AdditiveScore) and not short_additive.refusal(work):
            output, logsumexp = short_additive.run_forward(work)
        elif isinstance(work.score, AdditiveScore):
            output, logsumexp, kept = additive.run_forward(work)
        else:
            output, logsumexp = run_forward(work)
    if output.dtype != dtype:  # in the interpreter, see `_for_kernels`
        output, logsumexp = output.to(dtype), logsumexp.float()
    return output, logsumexp, kept


def _backward(
    grad: Tensor, grad_logsumexp: Tensor | None, output: Tensor, logsumexp: Tensor, query: Tensor, key: Tensor,
    value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor], spec: str, scale: float,
    dropout: float, needed: list[bool],
) -> list[Tensor]:
    work, bias = _work_of(query, key, value, sink, seed, tensors, spec, scale, dropout)
    inputs = [query, key, value, query.new_zeros(0) if sink is None else sink, *tensors]
    gradients = gradients_of(work, bias, grad, grad_logsumexp, output, logsumexp, needed)
    return [
        tensor.new_zeros(0) if not need else torch.zeros_like(tensor) if gradient is None else gradient.to(tensor.dtype)
        for tensor, gradient, need in zip(inputs, gradients, needed, strict=True)
    ]


def gradients_of(
    work: KernelWork, bias: Bias | None, grad: Tensor, grad_logsumexp: Tensor | None, output: Tensor,
    logsumexp: Tensor, needed: list[bool], kept: Tensor | None = None,
) -> Gradients:
    """The gradients that are needed, and possibly others; None where there is none. `kept`: of `_run_forward`."""
    mask = work.prepared.given
    first = len(work.score.tensors) + (0 if mask is None else len(mask.tensors))  # where those of the bias begin
    grads: Gradients = [None] * len(needed)
    with on_device(work.query):
        if grad_logsumexp is None and _runs_short(work, needed[4 + first :]):
            grads[0], grads[1], grads[2], grads[4] = short_additive.run_backward(work, _for_kernels(grad))
            return grads
        backward = Backward(work, _for_kernels(grad), _for_kernels(output), logsumexp, grad_logsumexp)
        if needed[3]:
            grads[3] = backward.sink()
        if isinstance(work.score, AdditiveScore):
            of_additive(backward, bias, first, needed, grads, kept)
        else:
            of_dot(backward, bias, first, needed, grads)
    return grads


def _runs_short(work: KernelWork, of_bias: list[bool]) -> bool:
    """Whether one kernel computes all gradients that are needed."""
    return isinstance(work.score, AdditiveScore) and not any(of_bias) and not short_additive.refusal(work)


class DirectFunction(torch.autograd.Function):
    """The same without a torch operator: for small requests, torch's dispatch costs more than the kernels."""

    @staticmethod
    def forward(
        ctx: Any, request: Request, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None,
        seed: Tensor | None, *tensors: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        prepared = prepare(request.mask, request.bias, request.sizes, query.device)
        settings = (request.score, prepared, request.scale, request.dropout)
        output, logsumexp, kept = _run_forward(kernel_work(query, key, value, sink, seed, *settings), query.dtype)
        # Saved by autograd, which detects in-place changes. The request itself is not kept: it holds the tensors.
        ctx.save_for_backward(output, logsumexp, kept, query, key, value, sink, seed, *tensors)
        ctx.set_materialize_grads(False)
        ctx.rest, ctx.values = settings, (request.score, request.mask, request.bias, request.normalizer)
        return (output, logsumexp) if request.want_logsumexp else output

    @staticmethod
    @for_one_gradient
    def backward(ctx: Any, grad: Tensor | None, grad_logsumexp: Tensor | None = None) -> tuple[Any, ...]:
        output, logsumexp, kept, query, key, value, sink, seed, *tensors = ctx.saved_tensors
        if grad is None and grad_logsumexp is None:
            return (None,) * (6 + len(tensors))
        grad = torch.zeros_like(output) if grad is None else grad
        flags = ctx.needs_input_grad
        needed = [*flags[1:5], *flags[6:]]
        with without_autocast(query.device):
            inputs = [query, key, value, sink, *tensors]
            if torch.is_grad_enabled():
                _, _, scale, dropout = ctx.rest
                spec = spec_of(*ctx.values)
                gradients = recorded_backward(inputs, seed, spec, scale, dropout, grad, grad_logsumexp)
            else:
                work = kernel_work(query, key, value, sink, seed, *ctx.rest)
                gradients = gradients_of(work, ctx.values[2], grad, grad_logsumexp, output, logsumexp, needed, kept)
                gradients = [
                    gradient.to(tensor.dtype) if gradient is not None and need else None
                    for tensor, gradient, need in zip(inputs, gradients, needed, strict=True)
                ]
        return (None, *gradients[:4], None, *gradients[4:])


def attend(request: Request, seed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The output of a request whose score is one of pairs, and its log-sum-exp, at least if that is wanted.

    Runs as a torch operator only under a compiler, a dispatch mode or a tensor subclass.
    """
    query, key, value = request.query, request.key, request.value
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None or type(query) is not Tensor:
        tensors, spec = pack(request)
        output, logsumexp = torch.ops.regard.fused.default(
            query, key, value, request.sink, seed, tensors, spec, request.scale, request.dropout
        )
        return output, logsumexp.float()
    if not request.needs_grad:
        prepared = prepare(request.mask, request.bias, request.sizes, query.device)
        settings = (request.sink, seed, request.score, prepared, request.scale, request.dropout)
        output, logsumexp, _ = _run_forward(kernel_work(query, key, value, *settings), query.dtype)
        return output, logsumexp.float()
    both = DirectFunction.apply(request, query, key, value, request.sink, seed, *request.value_tensors())
    return (both[0], both[1].float()) if request.want_logsumexp else (both, None)


def _forward_shapes(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:
    additive = isinstance(unpack_values(spec, tensors)[0], AdditiveScore)
    dtype = torch.float32 if additive else logsumexp_dtype(query.dtype)
    return query.new_empty(*query.shape[:3], value.shape[3]), query.new_empty(query.shape[:3], dtype=dtype)


def _backward_shapes(
    grad: Tensor, grad_logsumexp: Tensor | None, output: Tensor, logsumexp: Tensor, query: Tensor, key: Tensor,
    value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor], spec: str, scale: float,
    dropout: float, needed: list[bool],
) -> list[Tensor]:
    inputs = [query, key, value, query.new_zeros(0) if sink is None else sink, *tensors]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if need else tensor.new_zeros(0)
        for tensor, need in zip(inputs, needed, strict=True)
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, sink, seed, tensors, *ctx.rest = inputs
    ctx.save_for_backward(*output, query, key, value, sink, seed, *tensors)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, grad_logsumexp: Tensor | None) -> tuple[Any, ...]:
    output, logsumexp, query, key, value, sink, seed, *tensors = ctx.saved_tensors
    spec, scale, dropout = ctx.rest
    if grad is None and grad_logsumexp is None:
        return (None, None, None, None, None, [None] * len(tensors), None, None, None)
    grad = torch.zeros_like(output) if grad is None else grad
    flags = ctx.needs_input_grad
    needed = [*flags[:4], *flags[5]]
    with without_autocast(query.device):
        if torch.is_grad_enabled():
            inputs = [query, key, value, sink, *tensors]
            gradients = recorded_backward(inputs, seed, spec, scale, dropout, grad, grad_logsumexp)
        else:
            all_gradients = torch.ops.regard.fused_backward.default(
                grad, grad_logsumexp, output, logsumexp, query, key, value, sink, seed, tensors, spec, scale, dropout,
                needed,
            )
            gradients = [gradient if need else None for gradient, need in zip(all_gradients, needed, strict=True)]
    return (*gradients[:4], None, gradients[4:], None, None, None)


_LIBRARY.impl("fused", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused", _differentiate, setup_context=_save, lib=_LIBRARY)
take_one_by_one("fused_backward", _LIBRARY)
