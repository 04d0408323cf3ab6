"""The forward and the backward pass of `tiled`: a request in, tensors out. Nothing here is recorded by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.formula import formula
from regard.formula.dropout import drop
from regard.formula.request import Request
from regard.implementations.tiled import banded
from regard.implementations.tiled.layout import StripLayout
from regard.implementations.tiled.scored_strip import TiledAttention
from regard.scores.dot import fold
from regard.values.value import Value


def forward(request: Request, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output (b,h,q,v) and the log-sum-exp (b,h,q), which is empty if it is not wanted."""
    query, bands = request.query, banded.bands_of(request)
    if bands is None:
        return by_strips(request, seed)
    output = query.new_empty(*query.shape[:3], request.value.shape[3])
    for entry in banded.run(bands, request, output):
        output[entry : entry + 1] = by_strips(banded.one_entry(request, entry), seed)[0]
    return output, query.new_empty((0,), dtype=bands.dtype)


def by_strips(request: Request, seed: Tensor | None, layout: StripLayout | None = None) -> tuple[Tensor, Tensor]:
    """`forward` by strips in any case, whose products can be counted. `layout`: that of the request, if it is known."""
    attention = TiledAttention(request, seed is not None, layout)
    query, value, want_logsumexp = request.query, request.value, request.want_logsumexp
    output = query.new_empty(*query.shape[:3], value.shape[3])
    shape = query.shape[:3] if want_logsumexp else (0,)
    logsumexp = query.new_full(shape, -torch.inf, dtype=attention.dtype)
    for strip in attention.scored_strips(value, output):
        weights = strip.weights(keep_scores=want_logsumexp)[..., : strip.scores.shape[-1]]
        if seed is not None:
            weights = drop(weights, strip.grid, seed, request.dropout)
        assert strip.value is not None
        output[strip.index] = formula.apply(weights, strip.value).to(output.dtype)
        if want_logsumexp:
            logsumexp[strip.index] = formula.log_sum_exp(strip.scores)
    return output, logsumexp


def backward(
    request: Request,
    seed: Tensor | None,
    grad: Tensor,
    grad_logsumexp: Tensor | None,
    needed: list[bool],
    output: Tensor | None = None,
    logsumexp: Tensor | None = None,
) -> list[Tensor]:
    """The gradients that are needed: of query, key, value, sink and the tensors of the values; empty ones elsewhere.

    With `output` and `logsumexp`, those of softmax over more keys than these, it is the share of these keys in them.
    """
    score, bias = request.score, request.bias
    attention = TiledAttention(request, drops=seed is not None)
    sink = request.query.new_zeros(0) if request.sink is None else request.sink
    inputs = [request.query, request.key, request.value, sink, *request.value_tensors()]
    totals = [
        torch.zeros_like(tensor, dtype=attention.dtype if n < 3 else attention.summation_dtype(tensor))
        if need
        else None
        for n, (tensor, need) in enumerate(zip(inputs, needed, strict=True))
    ]
    grad_query, grad_key, grad_value, grad_sink = totals[:4]
    values = (score, request.mask, bias, request.normalizer)
    grads_score, _, grads_bias, grads_normalizer = _split_by_value(totals[4:], values)
    through_scores = any(needed[:2]) or any(needed[3:])
    for strip in attention.scored_strips(request.value):
        columns = strip.scores.shape[-1]
        all_weights = strip.weights() if logsumexp is None else strip.weights_among_others(logsumexp)
        upstream = grad[strip.index].to(attention.dtype)
        folded = fold(upstream, strip.key.shape[1])
        if grad_value is not None:
            kept = all_weights[..., :columns]
            if seed is not None:
                kept = drop(kept, strip.grid, seed, request.dropout)
            strip.add_to_keys(grad_value, torch.matmul(fold(kept, strip.key.shape[1]).mT, folded))
        if not through_scores:
            continue
        assert strip.value is not None
        grad_weights = torch.matmul(folded, strip.value.mT).view(*upstream.shape[:3], columns)
        if seed is not None:  # with the same bits
            grad_weights = drop(grad_weights, strip.grid, seed, request.dropout)
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
        to_query, to_key, to_score = score.backward(strip.query, strip.key, strip.grid, request.scale, grad_scores)
        if grad_query is not None:
            grad_query[strip.index] += to_query
        if grad_key is not None:
            strip.add_to_keys(grad_key, to_key)
        for total, gradient in zip([*grads_score, *grads_normalizer], [*to_score, *to_normalizer], strict=True):
            if total is not None:
                total += gradient
    return [
        tensor.new_zeros(0) if total is None else total.to(tensor.dtype)
        for tensor, total in zip(inputs, totals, strict=True)
    ]


def _split_by_value(totals: list[Tensor | None], values: tuple[Value | None, ...]) -> list[list[Tensor | None]]:
    """A flat list of gradients, cut into those of each value."""
    by_value = []
    for value in values:
        count = 0 if value is None else len(value.tensors)
        by_value.append(totals[:count])
        totals = totals[count:]
    return by_value


def _with_scratch(totals: list[Tensor | None], value: Value, dtype: torch.dtype) -> list[Tensor]:
    """`totals` with scratch tensors in place of gradients that are not needed."""
    pairs = zip(totals, value.tensors, strict=True)
    return [torch.zeros_like(tensor, dtype=dtype) if total is None else total for total, tensor in pairs]
