"""Attention together with its weights, from one computation of the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from regard.core import formula, request
from regard.core.autocast import without_autocast
from regard.core.call import Call
from regard.core.dropout import draw_seed, drop
from regard.core.grid import full_grid


def attend_with_weights(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, **options: Any
) -> tuple[Tensor, Tensor]:
    """The output (b,h,q,v) and the weights (b,h,q,k) before dropout. Needs memory for the weights."""
    asked = request.build(Call(query, key, value, dropout=dropout, **options))
    dtype, wide = asked.query.dtype, formula.accumulation_dtype(asked.query.dtype)
    seed = draw_seed(query.device) if dropout > 0 else None
    with without_autocast(query.device):
        asked = replace(
            asked, query=asked.query.to(wide), key=asked.key.to(wide), value=asked.value.to(wide)
        ).reduced()
        grid = full_grid(asked.sizes, asked.query.device)
        scores, visible = formula.masked_scores(
            asked.score, asked.query, asked.key, asked.mask, asked.bias, grid, asked.scale
        )
        rows = formula.normalize_rows(asked.normalizer, scores, visible, asked.sink, grid)
        output = formula.mix_values(
            rows, asked.value, visible, lambda weights: drop(weights, grid, seed, dropout)
        )
        return output.to(dtype), rows.merge(rows.weights, rows.raw).to(dtype)
