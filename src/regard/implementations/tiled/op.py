"""`tiled` as one torch operator: forward, backward and shapes, so that `torch.compile` sees a single node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.formula import formula
from regard.implementations.packing import SCHEMA, recorded_backward, unpack
from regard.implementations.tiled import banded
from regard.implementations.tiled.scored_strip import TiledAttention
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import take_one_by_one
from regard.values.value import Value

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
    attention, output = _begun(query, key, value, sink, seed, tensors, spec, scale)
    if want_logsumexp or not banded.suits(attention, value):
        return output, _by_strips(attention, value, output, seed, dropout, want_logsumexp)
    for entry in banded.run(attention, value, output):
        part = slice(entry, entry + 1)
        _by_strips(banded.one_entry(attention, entry), value[part], output[part])
    return output, query.new_empty((0,), dtype=attention.dtype)


def forward_by_strips(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float, dropout: float, want_logsumexp: bool,
) -> tuple[Tensor, Tensor]:
    """What the operator computes, by strips in any case, whose products can be counted."""
    attention, output = _begun(query, key, value, sink, seed, tensors, spec, scale)
    return output, _by_strips(attention, value, output, seed, dropout, want_logsumexp)


def _begun(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, seed: Tensor | None, tensors: list[Tensor],
    spec: str, scale: float,
) -> tuple[TiledAttention, Tensor]:
    """The attention that the operator's arguments say, and an output (b,h,q,v) to write to."""
    attention = TiledAttention(unpack(query, key, value, sink, tensors, spec, scale), drops=seed is not None)
    return attention, query.new_empty(*query.shape[:3], value.shape[3])


def _by_strips(
    attention: TiledAttention, value: Tensor, output: Tensor, seed: Tensor | None = None, dropout: float = 0.0,
    want_logsumexp: bool = False,
) -> Tensor:
    """Write the output (b,h,q,v); return the log-sum-exp of each row, if it is wanted."""
    attention.zero_empty_rows(output)
    shape = output.shape[:3] if want_logsumexp else (0,)
    logsumexp = output.new_full(shape, -torch.inf, dtype=attention.dtype)
    for strip in attention.scored_strips(value):
        weights = strip.weights(keep_scores=want_logsumexp)[..., : strip.scores.shape[-1]]
        output[strip.index] = strip.weighted_sum(strip.with_dropout(weights, seed, dropout)).to(output.dtype)
        if want_logsumexp:
            logsumexp[strip.index] = formula.log_sum_exp(strip.scores)
    return logsumexp


def _backward(
    grad: Tensor, grad_logsumexp: Tensor | None, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None,
    seed: Tensor | None, tensors: list[Tensor], spec: str, scale: float, dropout: float, needed: list[bool],
    output: Tensor | None = None, logsumexp: Tensor | None = None,
) -> list[Tensor]:
    """The gradients that are needed.

    With `output` and `logsumexp`, those of softmax over more keys than these, it is the share of these keys in them.
    """
    request = unpack(query, key, value, sink, tensors, spec, scale)
    score, mask, bias, normalizer = request.score, request.mask, request.bias, request.normalizer
    attention = TiledAttention(request, drops=seed is not None)
    inputs = [query, key, value, query.new_zeros(0) if sink is None else sink, *tensors]
    dtypes = [attention.dtype] * 3 + [attention.summation_dtype(tensor) for tensor in inputs[3:]]
    totals = [
        torch.zeros_like(tensor, dtype=dtype) if need else None
        for tensor, dtype, need in zip(inputs, dtypes, needed, strict=True)
    ]
    grad_query, grad_key, grad_value, grad_sink = totals[:4]
    grads_score, _, grads_bias, grads_normalizer = _split_by_value(totals[4:], (score, mask, bias, normalizer))
    through_scores = any(need for index, need in enumerate(needed) if index != 2)
    for strip in attention.scored_strips(value):
        columns = strip.scores.shape[-1]
        all_weights = strip.weights() if logsumexp is None else strip.weights_among_others(logsumexp)
        upstream = grad[strip.index].to(attention.dtype)
        if grad_value is not None:
            kept = strip.folded(strip.with_dropout(all_weights[..., :columns], seed, dropout))
            strip.add_to_keys(grad_value, torch.matmul(kept.mT, strip.folded(upstream)))
        if not through_scores:
            continue
        assert strip.value is not None
        grad_weights = torch.matmul(strip.folded(upstream), strip.value.mT).view(*upstream.shape[:3], columns)
        grad_weights = strip.with_dropout(grad_weights, seed, dropout)
        if logsumexp is None or output is None:
            grad_scores, to_normalizer = strip.scores_backward(all_weights, grad_weights, grad_logsumexp)
        else:
            grad_scores = strip.share_backward(all_weights, grad_weights, upstream, output, grad_logsumexp)
            to_normalizer = []
        if grad_sink is not None:
            grad_sink[strip.index[1]] += grad_scores[..., columns:].sum((0, 2, 3))
        grad_scores = grad_scores[..., :columns]
        if bias is not None and any(total is not None for total in grads_bias):
            bias.accumulate(strip.grid, grad_scores, _with_scratch(grads_bias, bias, attention.dtype))
        to_query, to_key, to_score = score.backward(strip.query, strip.key, strip.grid, scale, grad_scores)
        if grad_query is not None:
            grad_query[strip.index] += to_query
        if grad_key is not None:
            strip.add_to_keys(grad_key, to_key)
        for total, part in zip([*grads_score, *grads_normalizer], [*to_score, *to_normalizer], strict=True):
            if total is not None:
                total += part
    return [
        tensor.new_zeros(0) if total is None else total.to(tensor.dtype)
        for tensor, total in zip(inputs, totals, strict=True)
    ]


def _split_by_value(totals: list[Tensor | None], values: tuple[Value | None, ...]) -> list[list[Tensor | None]]:
    """A flat list of gradients, cut into those of each value."""
    parts = []
    for value in values:
        count = 0 if value is None else len(value.tensors)
        parts.append(totals[:count])
        totals = totals[count:]
    return parts


def _with_scratch(totals: list[Tensor | None], value: Value, dtype: torch.dtype) -> list[Tensor]:
    """`totals` with scratch tensors in place of gradients that are not needed."""
    pairs = zip(totals, value.tensors, strict=True)
    return [torch.zeros_like(tensor, dtype=dtype) if total is None else total for total, tensor in pairs]


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
            found = recorded_backward(inputs, seed, spec, scale, dropout, grad, upstream)
        else:
            parts = torch.ops.regard.tiled_backward.default(
                grad, upstream, query, key, value, sink, seed, tensors, spec, scale, dropout, needed
            )
            found = [part if need else None for part, need in zip(parts, needed, strict=True)]
    return (*found[:4], None, found[4:], None, None, None, None)


_LIBRARY.impl("tiled", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("tiled_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::tiled", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::tiled_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::tiled", _differentiate, setup_context=_save, lib=_LIBRARY)
take_one_by_one("tiled_backward", _LIBRARY)
