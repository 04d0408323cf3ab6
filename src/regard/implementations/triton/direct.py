"""The shortest way from `attend` to the kernels, for calls whose signature has come before.

Nothing is checked, built or looked up that a signature already decides: dot products without dropout, sink or a bias
with tensors. Whatever else is asked for takes the way through a request (`op.py`), which also makes the first launches.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from regard.core.arguments import finite_number
from regard.core.autocast import without_autocast
from regard.core.call import Call
from regard.core.request import Request
from regard.implementations.lowering import capturing
from regard.implementations.packing import recorded_backward, spec_of
from regard.implementations.triton import block_sizes, op
from regard.implementations.triton.blocks import PreparedMask, prepare, versions
from regard.implementations.triton.dot import new_like, new_output, new_row_stats
from regard.implementations.triton.kernel_work import Launches, find_launches
from regard.masks import Mask
from regard.normalizers import Softmax
from regard.scores.dot import DotScore, ScaledDotScore, SoftcapScore

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_SCORES = (DotScore, ScaledDotScore, SoftcapScore)


def shortcut(call: Call, request: Request) -> DirectCall | None:
    """How to run calls of the same signature as this one, for which `request` was made; None if they need more."""
    plain = (
        type(request.score) in _SCORES
        and isinstance(request.normalizer, Softmax)
        and call.query.dim() == 4
        and (request.bias is None or not request.bias.tensors)
        and request.bias is call.bias
        and request.mask is call.mask
        and request.query is call.query
        and request.sink is None
        and request.dropout == 0
        and not request.want_logsumexp
    )
    # Few queries without a gradient are decoded by other kernels.
    return DirectCall(request) if plain and (request.needs_grad or request.sizes[2] > 16) else None


class DirectCall:
    """Calls of one signature."""

    def __init__(self, request: Request) -> None:
        self.sizes, self.device, self.trains = request.sizes, request.query.device, request.needs_grad
        self.factor, self.width = request.score.factor, request.query.shape[3]
        self.scale = self.factor(None, self.width)
        self.score, self.bias, self.normalizer = request.reduced().score, request.bias, request.normalizer
        # A mask with tensors is prepared for each object; of another, all numbers are part of the signature.
        self.alike = request.mask is None or not request.mask.tensors
        self.prepared: PreparedMask | None = None
        # The last mask with tensors, their versions, and what was prepared; neither is kept alive.
        self.last: tuple[Any, tuple[int, ...], Any] | None = None

    def __call__(self, call: Call) -> Tensor | None:
        """The output; None if the call must go through a request after all."""
        query, key, value, mask = call.query, call.key, call.value, call.mask
        if type(query) is not Tensor or type(key) is not Tensor or type(value) is not Tensor:
            return None
        if _is_wrapped(query) or _is_wrapped(key) or _is_wrapped(value):  # left over from torch.func
            return None
        if _get_current_dispatch_mode() is not None or torch.is_inference_mode_enabled() or capturing():
            return None
        if not block_sizes.INTERPRETED and torch.cuda.current_device() != self.device.index:
            return None
        scale = (
            self.scale if call.scale is None else self.factor(finite_number("scale", call.scale), self.width)
        )
        if mask is not None:
            mask.check_contents(self.sizes)  # type: ignore[union-attr]
        prepared = self.prepared
        if prepared is None:
            prepared = self._prepare(mask)  # type: ignore[arg-type]
        launches = find_launches(prepared, query, key, value, self.score, scale)
        if launches is None or "forward" not in launches:
            return None
        if self.trains:
            output: Tensor = _apply((self, mask, prepared, launches, scale), query, key, value)
            return output
        output, logsumexp = new_output(query, value)
        launches["forward"](query, key, value, output, logsumexp)
        return output

    def _prepare(self, mask: Mask | None) -> PreparedMask:
        if mask is None or self.alike:
            self.prepared = prepare(mask, self.bias, self.sizes, self.device)
            return self.prepared
        now, last = versions(mask), self.last
        found = last[2]() if last is not None and last[0]() is mask and last[1] == now else None
        if found is None:
            found = prepare(mask, self.bias, self.sizes, self.device)
            self.last = weakref.ref(mask), now, weakref.ref(found)
        return found


class LeanFunction(torch.autograd.Function):
    """Attention whose kernels have been launched before."""

    @staticmethod
    def forward(ctx: Any, rest: tuple[Any, ...], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, logsumexp = new_output(query, value)
        rest[3]["forward"](query, key, value, output, logsumexp)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.set_materialize_grads(False)
        ctx.rest = rest
        ctx.addresses = (query.data_ptr(), key.data_ptr(), value.data_ptr())
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None
        query, key, value, output, logsumexp = saved = ctx.saved_tensors
        direct, mask, prepared, launches, scale = ctx.rest
        if torch.is_grad_enabled():
            spec = spec_of(direct.score, mask, direct.bias, direct.normalizer)
            inputs = [query, key, value, None, *(() if mask is None else mask.tensors)]
            return None, *recorded_backward(inputs, None, spec, scale, 0.0, grad, None)[:3]
        # Hooks may have moved the saved tensors, to a layout of their own.
        stayed = (query.data_ptr(), key.data_ptr(), value.data_ptr()) == ctx.addresses
        if stayed and not (grad.data_ptr() | output.data_ptr()) % 16:
            found = _launch_backward(launches, ctx.needs_input_grad, saved, grad)
            if found is not None:
                return found
        work = op.kernel_work(query, key, value, None, None, direct.score, prepared, scale, 0.0)
        needed = [*ctx.needs_input_grad[1:], False]
        with without_autocast(query.device):
            return None, *op.gradients_of(work, direct.bias, grad, None, output, logsumexp, needed)[:3]


# `Function.apply` without its search for leftovers of torch.func, which `DirectCall` has done.
_apply = super(torch.autograd.Function, LeanFunction).apply


def _launch_backward(
    launches: Launches, needed: tuple[bool, ...], saved: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor | None, ...] | None:
    """The gradients by launches that are known; None if they are not."""
    query, key, value, output, logsumexp = saved
    layout = grad.stride()
    known: Any = launches.get(layout)
    if known is None:
        first = launches.get(("row_stats", grad.dtype, layout, output.dtype, output.stride(), True))
        by_key, by_query = (
            launches.get(name)
            for name in (("keys", grad.dtype, layout), ("queries", grad.dtype, layout, True, None))
        )
        if first is None or by_key is None or by_query is None:
            return None
        known = launches[layout] = first, by_key, by_query
    first, by_key, by_query = known
    row_stats = new_row_stats(logsumexp)
    first(output, grad, logsumexp, row_stats)
    normaliser, subtracted = row_stats.unbind(0)
    grad_query = grad_key = grad_value = None
    if needed[2] or needed[3]:
        grad_key, grad_value = new_like(key), new_like(value)
        by_key(query, key, value, grad, normaliser, subtracted, grad_key, grad_value)
    if needed[1]:
        grad_query = new_like(query)
        by_query(query, key, value, grad, normaliser, subtracted, grad_query)
    return None, grad_query, grad_key, grad_value
