"""The shortest way from `attend` to the kernels that train, for calls that repeat (`dispatch/repeated_calls.py`).

Nothing is checked, built or looked up that a signature already decides: dot products without dropout, sink or a bias
with tensors. Whatever else is asked for takes the way through a request (`op.py`), which also makes the first launches.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.formula.call import Call
from regard.formula.request import FEW_QUERIES, Request
from regard.implementations.packing import recorded_backward, spec_of
from regard.implementations.triton.dot import op
from regard.implementations.triton.dot.launches import logsumexp_dtype, padded_rows
from regard.implementations.triton.launch.block_sizes import INTERPRETED, SMALL
from regard.implementations.triton.launch.blocks import PreparedMask, prepare, versions
from regard.implementations.triton.launch.kernel_work import AnyLaunch, Launches, find_launches
from regard.implementations.triton.launch.launching import aligned_rows, prototype
from regard.implementations.triton.launch.raw_launches import watched
from regard.masks import Mask
from regard.normalizers import Softmax
from regard.scores.dot import DotScore, ScaledDotScore, SoftcapScore
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import for_one_gradient

_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_empty_like = torch.empty_like
_SCORES = (DotScore, ScaledDotScore, SoftcapScore)
_MOST_LAYOUTS = 64  # of one prepared mask


def bind(call: Call, request: Request) -> DirectCall | None:
    """How to run calls of the same signature as this one, for which `request` was made; None if they need more."""
    plain = (
        type(request.score) in _SCORES
        and isinstance(request.normalizer, Softmax)
        and (request.bias is None or not request.bias.tensors)
        and request.bias is call.bias
        and request.mask is call.mask
        and request.query is call.query
        and request.sink is None
        and request.dropout == 0
        and not request.want_logsumexp
        and not (SMALL and request.query.dtype == torch.bfloat16)  # which it computes in another dtype
    )
    # Few queries without a gradient are decoded by other kernels.
    return DirectCall(request) if plain and (request.needs_grad or request.sizes[2] > FEW_QUERIES) else None


Step = tuple[AnyLaunch, AnyLaunch | None, AnyLaunch | None]  # of a backward pass


class LayoutLaunches:
    """The launches for rows that lie in memory in one way, which op.py has made before."""

    def __init__(self, launches: Launches) -> None:
        self.launches, self.forward = launches, launches["forward"]
        self.backward: dict[Any, Step] = {}  # by the strides of a gradient, and what is needed

    def find_backward(self, grad: Tensor, output: Tensor, needed: tuple[bool, ...]) -> Step | None:
        """Those of a backward pass: of numbers for each row, of keys, of queries; None if one is not known yet."""
        kind, launches = (grad.dtype, grad.stride()), self.launches
        of_rows = launches.get(("row_stats", *kind, logsumexp_dtype(output.dtype), output.dtype, output.stride(), True))
        by_key, by_query = launches.get(("keys", *kind)), launches.get(("queries", *kind, True, None))
        of_key, of_query = needed[3] or needed[4], needed[2]
        if of_rows is None or (of_key and by_key is None) or (of_query and by_query is None):
            return None
        step = of_rows, by_key if of_key else None, by_query if of_query else None
        self.backward[kind[1], needed] = step
        return step


def _nothing() -> None:
    return None


class DirectCall:
    """Calls of one signature. Their launches are kept with what was prepared of the mask, by how rows lie in memory."""

    def __init__(self, request: Request) -> None:
        query, key, value = request.query, request.key, request.value
        self.sizes, self.device, self.trains = request.sizes, query.device, request.needs_grad
        self.index, self.dtype, self.scale = query.get_device(), query.dtype, request.scale
        self.score, self.bias, self.normalizer = request.reduced().score, request.bias, request.normalizer
        # A mask with tensors is prepared for each object; of another, all numbers are part of the signature.
        self.has_tensors = request.mask is not None and bool(request.mask.tensors)
        # What was prepared is not kept alive: it holds tables on the device, of which `blocks.py` limits the number.
        self.prepared: Callable[[], PreparedMask | None] = _nothing
        # The same of the last mask with tensors, which is not kept either, and their versions.
        self.last: tuple[Any, tuple[int, ...], Any] | None = None
        batch, heads, queries, _ = request.sizes
        shapes = ((batch, heads, queries, value.shape[3]), query.shape, key.shape, value.shape)
        self.like_output, self.like_query, self.like_key, self.like_value = (
            prototype(shape, query.dtype, query.device) for shape in shapes
        )
        self.like_logsumexp = prototype((batch, heads, queries), logsumexp_dtype(query.dtype), query.device)
        self.like_stats = prototype((2, batch * heads, padded_rows(queries)), torch.float32, query.device)
        self.half_of_stats = 2 * self.like_stats.numel()  # in bytes: its two parts follow each other

    def run(self, query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """The output; None if the call must go through a request after all."""
        rows = aligned_rows(query, key, value)
        if rows is None:
            return None
        if not INTERPRETED and (torch._C._cuda_getDevice() != self.index or torch.cuda.is_current_stream_capturing()):
            return None
        mask: Mask | None = given.get("mask")
        if self.has_tensors:
            mask.check_contents(self.sizes)  # type: ignore[union-attr]
            prepared = self._prepared(mask)  # type: ignore[arg-type]
        else:
            prepared = self.prepared() or self._prepare(mask)
        layout = (self, query.stride(), key.stride(), value.stride())
        of_layout = prepared.layouts.get(layout)
        if of_layout is None:
            of_layout = self._find(layout, mask, (query, key, value))
            if of_layout is None:
                return None
        if self.trains:
            tensors = mask.tensors if self.has_tensors else ()  # type: ignore[union-attr]
            output: Tensor = _apply((self, mask, prepared, of_layout, rows), tensors, query, key, value)
            return output
        output = _empty_like(self.like_output)
        self.launch_forward(of_layout.forward, rows, (query, key, value, output, _empty_like(self.like_logsumexp)))
        return output

    def launch_forward(self, forward: AnyLaunch, rows: tuple[int, int, int], tensors: tuple[Tensor, ...]) -> None:
        """Compute the output and the log-sum-exp, the last of these tensors; `rows`: the addresses of the others."""
        if forward.ready and not watched():
            stream = torch._C._cuda_getCurrentRawStream(self.index)
            forward.at(stream, (*rows, tensors[3].data_ptr(), tensors[4].data_ptr()))
        else:
            forward(*tensors)

    def _prepared(self, mask: Mask) -> PreparedMask:
        last = self.last
        prepared_mask = last[2]() if last is not None and last[0]() is mask and last[1] == versions(mask) else None
        return self._prepare(mask) if prepared_mask is None else prepared_mask

    def _prepare(self, mask: Mask | None) -> PreparedMask:
        prepared_mask = prepare(mask, self.bias, self.sizes, self.device)
        if mask is None or not self.has_tensors:
            self.prepared = weakref.ref(prepared_mask)
        else:
            self.last = weakref.ref(mask), versions(mask), weakref.ref(prepared_mask)
        return prepared_mask

    def _find(self, layout: Any, mask: Mask | None, rows: tuple[Tensor, Tensor, Tensor]) -> LayoutLaunches | None:
        """The launches for a layout, if a call like this one has gone through a request."""
        prepared = self._prepare(mask)  # as that call did: the cache may have been emptied since
        query, key, value = rows
        launches = find_launches(prepared, query, key, value, self.score, self.scale)
        if launches is None or "forward" not in launches:
            return None
        if len(prepared.layouts) >= _MOST_LAYOUTS:
            prepared.layouts.clear()
        layout_launches = prepared.layouts[layout] = LayoutLaunches(launches)
        return layout_launches

    def known(self, prepared: PreparedMask, saved: Sequence[Tensor]) -> LayoutLaunches | None:
        """The launches for saved tensors that hooks have put elsewhere, if such a layout has come before."""
        output, logsumexp, *rows = saved[:5]
        if aligned_rows(*rows) is None or any(tensor.dtype != self.dtype for tensor in (output, *rows)):
            return None
        # The launches of a backward pass are kept for an output and a log-sum-exp as the forward pass makes them.
        if not (output.is_contiguous() and logsumexp.is_contiguous()) or logsumexp.data_ptr() % 16:
            return None
        return prepared.layouts.get((self, *[row_tensor.stride() for row_tensor in rows]))

    def gradients(
        self, step: Step, rows: tuple[int, int, int], saved: tuple[Tensor, ...], grad: Tensor, at_grad: int
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the query, the key and the value, those that have a launch, behind two of no tensor."""
        output, logsumexp, query, key, value = saved[:5]
        of_rows, by_key, by_query = step
        grad_query: Any = None
        grad_key: Any = None
        grad_value: Any = None
        stats, ready = _empty_like(self.like_stats), of_rows.ready
        if by_key is not None:
            grad_key, grad_value = _empty_like(self.like_key), _empty_like(self.like_value)
            ready = ready and by_key.ready
        if by_query is not None:
            grad_query = _empty_like(self.like_query)
            ready = ready and by_query.ready
        if ready and not watched():
            stream, first = torch._C._cuda_getCurrentRawStream(self.index), stats.data_ptr()
            common = (*rows, at_grad, first, first + self.half_of_stats)
            of_rows.at(stream, (output.data_ptr(), at_grad, logsumexp.data_ptr(), first))
            if by_key is not None:
                by_key.at(stream, (*common, grad_key.data_ptr(), grad_value.data_ptr()))
            if by_query is not None:
                by_query.at(stream, (*common, grad_query.data_ptr()))
            return None, None, grad_query, grad_key, grad_value
        of_rows(output, grad, logsumexp, stats)
        tensors = (query, key, value, grad, *stats.unbind(0))
        if by_key is not None:
            by_key(*tensors, grad_key, grad_value)
        if by_query is not None:
            by_query(*tensors, grad_query)
        return None, None, grad_query, grad_key, grad_value


class LeanFunction(torch.autograd.Function):
    """Attention whose kernels have been launched before."""

    @staticmethod
    def forward(
        ctx: Any, rest: tuple[Any, ...], tensors: tuple[Tensor, ...], query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        direct, _, _, of_layout, rows = rest
        output, logsumexp = _empty_like(direct.like_output), _empty_like(direct.like_logsumexp)
        direct.launch_forward(of_layout.forward, rows, (query, key, value, output, logsumexp))
        # What `op.DirectFunction` saves: a checkpointed call may run by one of them and be recomputed by the other.
        ctx.save_for_backward(output, logsumexp, query, key, value, *tensors)
        ctx.set_materialize_grads(False)
        # Hooks may move the saved tensors, to a layout of their own.
        ctx.rest = rest if _hooks(True) is None else (*rest[:4], None)
        return output

    @staticmethod
    @for_one_gradient
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None, None
        output, logsumexp, query, key, value, *tensors = saved = ctx.saved_tensors
        direct, mask, prepared, of_layout, before = ctx.rest
        if torch.is_grad_enabled():
            spec = spec_of(direct.score, mask, direct.bias, direct.normalizer)
            inputs = [query, key, value, None, *tensors]
            with without_autocast(query.device):
                return None, None, *recorded_backward(inputs, None, spec, direct.scale, 0.0, grad, None)[:3]
        rows, at_grad = (query.data_ptr(), key.data_ptr(), value.data_ptr()), grad.data_ptr()
        if rows != before:
            of_layout = direct.known(prepared, saved)
        if of_layout is not None and not (at_grad | output.data_ptr()) % 16:
            needed = ctx.needs_input_grad
            step = of_layout.backward.get((grad.stride(), needed)) or of_layout.find_backward(grad, output, needed)
            if step is not None:
                gradients: tuple[Any, ...] = direct.gradients(step, rows, saved, grad, at_grad)
                return gradients
        work = op.kernel_work(query, key, value, None, None, direct.score, prepared, direct.scale, 0.0)
        wanted = [*ctx.needs_input_grad[2:], False]
        with without_autocast(query.device):
            return None, None, *op.gradients_of(work, direct.bias, grad, None, output, logsumexp, wanted)[:3]


# `Function.apply` without its search for leftovers of torch.func, which `DirectCall` has done.
_apply = super(torch.autograd.Function, LeanFunction).apply
