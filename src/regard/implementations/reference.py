"""`reference`: the formula on the full array of scores. It defines the result of every other implementation."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from regard.formula import formula
from regard.formula.dropout import draw_seed, drop
from regard.formula.request import Request
from regard.support.autocast import without_autocast
from regard.values.grid import full_grid

name = "reference"


def refuse(request: Request) -> str | None:
    """Why this request cannot run here: never, the reference runs everything."""
    return None


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    """The output (b,h,q,v) and, if wanted, the log-sum-exp (b,h,q)."""
    seed = draw_seed(request.query.device) if request.dropout > 0 else None
    with without_autocast(request.query.device):
        return compute(request, seed)


def compute(request: Request, seed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The formula, with dropout bits drawn from `seed`."""
    dtype, wide = request.query.dtype, formula.accumulation_dtype(request.query.dtype)
    query, key, value = (tensor.to(wide) for tensor in (request.query, request.key, request.value))
    request = replace(request, query=query, key=key, value=value).reduced()
    grid = full_grid(request.sizes, request.query.device)
    scores, visible = formula.masked_scores(
        request.score, request.query, request.key, request.mask, request.bias, grid, request.scale
    )
    rows = formula.normalize_rows(request.normalizer, scores, visible, request.sink, grid)
    output = formula.mix_values(
        rows, request.value, visible, lambda weights: drop(weights, grid, seed, request.dropout)
    )
    logsumexp = formula.log_sum_exp(scores) if request.want_logsumexp else None
    return output.to(dtype), logsumexp
