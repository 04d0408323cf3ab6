"""The four functions `attend`, `weights`, `summarize` and `explain`: a call becomes a request, is planned and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from torch import Tensor

from regard.dispatch import plan, repeated_calls
from regard.dispatch.plan import Plan
from regard.errors import BadType, BadValue
from regard.formula import formula, request
from regard.formula.call import OPTIONS, SCORING, Call, Options, Scoring, read_call, spell_out
from regard.implementations import HAS_TRITON
from regard.scores.base import spread_heads
from regard.support.arguments import dense_tensor, described, is_fake_or_meta
from regard.support.autocast import without_autocast
from regard.support.differentiate import transforming
from regard.values.grid import Part, full_grid

if TYPE_CHECKING:
    from regard.dispatch.summary import Summary

Rows = Sequence[int] | slice | Tensor | None


_PLANS: dict[Any, plan.Implementation] = {}
_MOST_PLANS = 4096


@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, *, return_logsumexp: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, *, return_logsumexp: Literal[False] = False, **options: Unpack[Options]
) -> Tensor: ...
@spell_out(OPTIONS)
def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of queries over keys and values: softmax(score(q, k) + bias) v, and every relative of it.

    Shapes: query (b,h,q,d), key (b,g,k,d), value (b,g,k,v), with h a multiple of g and d above 0; or three axes for
    one head. The result is (b,h,q,v). A query that may attend to nothing gets zeros.

        >>> import torch, regard
        >>> q = k = v = torch.eye(3)[None]
        >>> regard.attend(q, k, v, mask=regard.masks.causal(), normalize="hard")[0]
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])

    Args:
        score: how a query and a key match; a name or a value of `regard.scores`.
        mask: what may be attended to; a value of `regard.masks` or a bool tensor, True = may attend. One of two axes
            is (q,k), also where it has the shape of a padding mask (b,k), which `masks.padding` takes.
        bias: numbers added to the scores; a value of `regard.biases` or a float tensor.
        normalize: softmax, sigmoid, sparsemax, entmax15, hard, or a `Normalizer`.
        scale: multiplies q·k in scaled-dot and softcap (default 1/√d), the finished score elsewhere (default 1).
        dropout: the share of weights to drop; acts whenever it is above 0.
        sink: (h,), one more logit for each head, which takes weight but has no value.
        return_logsumexp: also return log Σ exp of the visible biased scores, (b,h,q), without the sink.
        impl: auto, reference, tiled, sdpa, flex or triton. A named one runs or raises `Unsupported`.
    """
    compiling = torch.compiler.is_compiling()
    repeated = None if compiling else repeated_calls.signature(query, key, value, options)
    if repeated is not None:
        run = repeated_calls.KNOWN.get(repeated)
        repeated_output = None if run is None else run(query, key, value, options)
        if repeated_output is not None:
            return repeated_output
    call = read_call("attend", OPTIONS, query, key, value, options) if options else Call(query, key, value)
    implementation, signature = None, None
    if not compiling:
        try:
            signature = plan.signature(call)
            implementation = _PLANS.get(signature)
        except (AttributeError, TypeError, RuntimeError):
            pass  # an argument of a wrong type, or a nested tensor: the check below raises for it
    call_request = request.build(call, check=implementation is None)
    if implementation is None:
        implementation = plan.implementation(plan.make(call_request, call.impl).impl)
        if signature is not None:
            _remember(signature, implementation)
    output, logsumexp = implementation.run(call_request)
    if repeated is not None and repeated not in repeated_calls.KNOWN:
        repeated_calls.remember(repeated, implementation, call, call_request)
    if query.dim() == 3:
        output = output.squeeze(1)
        logsumexp = None if logsumexp is None else logsumexp.squeeze(1)
    return output if logsumexp is None else (output, logsumexp)


def _remember(signature: Any, chosen: plan.Implementation) -> None:
    if len(_PLANS) >= _MOST_PLANS:
        _PLANS.clear()
    _PLANS[signature] = chosen


@spell_out(OPTIONS)
def explain(
    query: Tensor, key: Tensor, value: Tensor, *, return_logsumexp: bool = False, **options: Unpack[Options]
) -> Plan:
    """What `attend` would do with the same arguments: the implementation, the reason, and why not the others."""
    call = read_call("explain", OPTIONS, query, key, value, {**options, "return_logsumexp": return_logsumexp})
    return plan.make(request.build(call), call.impl, complete=True)


@spell_out(SCORING)
def weights(query: Tensor, key: Tensor, *, rows: Rows = None, heads: Rows = None, **options: Unpack[Scoring]) -> Tensor:
    """The exact weights (b, heads, rows, k) of chosen query rows and heads; differentiable.

    They are what `attend` multiplies the values with, before dropout, whichever implementation ran it.
    """
    call_request = request.build(read_call("weights", SCORING, query, key, key, options))
    dtype, wide, device = (
        call_request.query.dtype,
        formula.accumulation_dtype(call_request.query.dtype),
        call_request.query.device,
    )
    _, head_count, row_count, _ = call_request.sizes
    chosen_rows = selection("rows", rows, row_count, device)
    chosen_heads = selection("heads", None if query.dim() == 3 else heads, head_count, device)
    with without_autocast(device):
        fused = (
            _fused_weights(call_request, chosen_rows, chosen_heads) if device.type == "cuda" and HAS_TRITON else None
        )
        if fused is not None:
            return fused.squeeze(1) if query.dim() == 3 else fused
        score_of_pairs, wide_query, wide_key = call_request.score.reduce(
            call_request.query.to(wide), call_request.key.to(wide), guarded=call_request.mask is not None
        )
        grid = full_grid(call_request.sizes, device).part(heads=chosen_heads, rows=chosen_rows)
        if chosen_heads is not None:
            wide_key = _take(spread_heads(wide_key, head_count), 1, chosen_heads)
            wide_query = _take(wide_query, 1, chosen_heads)
        if chosen_rows is not None:
            wide_query = _take(wide_query, 2, chosen_rows)
        scores, visible = formula.masked_scores(
            score_of_pairs, wide_query, wide_key, call_request.mask, call_request.bias, grid, call_request.scale
        )
        rows_found = formula.normalize_rows(call_request.normalizer, scores, visible, call_request.sink, grid)
        exact_weights = rows_found.merge(rows_found.weights, rows_found.raw).to(dtype)
    return exact_weights.squeeze(1) if query.dim() == 3 else exact_weights


def _fused_weights(asked: request.Request, rows: Part | None, heads: Part | None) -> Tensor | None:
    """The weights computed by Triton kernels; None where they cannot run the request or a gradient is needed."""
    from regard.implementations.triton.dot import weights as kernels

    if asked.needs_grad or asked.forward_mode or transforming():
        return None
    reduced = asked.widened().reduced()
    return kernels.run(reduced, rows, heads, asked.query.dtype) if kernels.runs(reduced) else None


@spell_out(SCORING)
def summarize(query: Tensor, key: Tensor, *, top: int = 8, **options: Unpack[Scoring]) -> Summary:
    """What the weights look like, in memory linear in the length: entropy, received weight, strongest keys."""
    from regard.dispatch.summary import summarize_request

    call_request = request.build(read_call("summarize", SCORING, query, key, key, options))
    summary = summarize_request(call_request, top)
    return summary.without_heads() if query.dim() == 3 else summary


def selection(argument: str, chosen: Rows, length: int, device: torch.device) -> Part | None:
    """Chosen indices as a range or a tensor; negative ones count from the end."""
    if chosen is None:
        return None
    if isinstance(chosen, slice):
        start, stop, step = chosen.indices(length)
        if step == 1:
            return slice(start, max(start, stop))
        chosen = list(range(start, stop, step))
    if isinstance(chosen, Tensor):
        dense_tensor(argument, chosen)
    try:
        index = torch.as_tensor(chosen, device=device)
    except (TypeError, ValueError, RuntimeError):
        index = None
    if (
        index is None
        or index.dim() != 1
        or (index.numel() and (index.is_floating_point() or index.dtype == torch.bool))
    ):
        raise BadType(f"{argument}: expected a sequence of ints, a slice or a 1-D tensor, got {described(chosen)}.")
    index = index.long()
    if not isinstance(chosen, Tensor):
        numbers = [int(number) for number in chosen]
    elif is_fake_or_meta(index) or torch.compiler.is_compiling() or transforming():
        numbers = []  # the contents cannot be read
    else:
        numbers = index.tolist()
    if numbers and not (-length <= min(numbers) and max(numbers) < length):
        raise BadValue(f"{argument}: expected indices from {-length} to {length - 1}, got {numbers}.")
    return torch.where(index < 0, index + length, index)


def _take(tensor: Tensor, axis: int, part: Part) -> Tensor:
    if isinstance(part, slice):
        return tensor.narrow(axis, part.start, part.stop - part.start)
    return tensor.index_select(axis, part)
