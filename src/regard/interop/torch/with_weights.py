"""Attention together with its weights, from one computation of the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop_some

from regard.formula import formula, request
from regard.formula.call import Call
from regard.formula.dropout import draw_seed, drop
from regard.support.autocast import autocasts, without_autocast
from regard.values.grid import Grid, full_grid


def attend_with_weights(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, is_finite: bool, **options: Any
) -> tuple[Tensor, Tensor]:
    """The output (b,h,q,v) and the weights (b,h,q,k) before dropout. Needs memory for the weights.

    `is_finite`: queries, keys and values are known to be finite and far from overflow.
    """
    call_request = request.build(Call(query, key, value, dropout=dropout, **options))
    dtype, wide = call_request.query.dtype, formula.accumulation_dtype(call_request.query.dtype)
    # Autocast on a GPU, not on a CPU, lets softmax return float32, and so does torch's layer with its weights.
    weights_dtype = wide if query.is_cuda and autocasts(query.device) else dtype
    with without_autocast(query.device):
        call_request = replace(
            call_request,
            query=call_request.query.to(wide),
            key=call_request.key.to(wide),
            value=call_request.value.to(wide),
        ).reduced()
        grid = full_grid(call_request.sizes, call_request.query.device)
        # Nothing is hidden, or nothing that a weight of zero would not hide.
        is_plain = is_finite or (call_request.mask is None and call_request.bias is None)
        output, weights = _plain(call_request, grid) if is_plain else _guarded(call_request, grid)
        return output.to(dtype), weights.to(weights_dtype)


def _plain(asked: request.Request, grid: Grid) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ + bias) v as it is written, with weights of 0 in rows that see nothing."""
    scores = torch.matmul(asked.query * asked.scale, asked.key.mT)
    added = None if asked.bias is None else asked.bias.values(grid, scores.dtype)
    if asked.mask is not None:
        hidden = ~asked.mask.tile(grid)
        added = scores.new_zeros(()) if added is None else added
        added = added.masked_fill(hidden, -torch.inf)
    empty = None
    if added is not None:
        scores = scores.add_(added)
        empty = (added == -torch.inf).all(-1, keepdim=True)
    if empty is None or not bool(empty.any()):
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    return torch.matmul(drop_some(weights, asked.dropout), asked.value), weights


def _guarded(asked: request.Request, grid: Grid) -> tuple[Tensor, Tensor]:
    """The same where a hidden row may hold NaN or infinity, which is not read."""
    seed = draw_seed(asked.query.device) if asked.dropout > 0 else None
    scores, visible = formula.masked_scores(
        asked.score, asked.query, asked.key, asked.mask, asked.bias, grid, asked.scale
    )
    rows = formula.normalize_rows(asked.normalizer, scores, visible, asked.sink, grid)
    output = formula.mix_values(rows, asked.value, visible, lambda weights: drop(weights, grid, seed, asked.dropout))
    return output, rows.merge(rows.weights, rows.raw)
