"""The mathematics of attention, written once in plain differentiable torch.

This is what `reference` runs and what `weights` shows. Each step keeps the promises by itself: what a mask hides is
never read, not even through 0 · NaN, and what is visible and not finite stays visible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.biases import Bias
from regard.core.arguments import readable
from regard.core.grid import Grid
from regard.masks import Mask
from regard.normalizers import Normalizer
from regard.scores import Score
from regard.scores.base import spread_heads
from regard.scores.dot import fold


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def masked_scores(
    score: Score, query: Tensor, key: Tensor, mask: Mask | None, bias: Bias | None, grid: Grid, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Biased scores (b,h,q,k) with −inf where hidden, and what is visible (None: everything)."""
    if mask is None:
        scores, visible = score.pairs(query, key, grid, scale), None
    else:
        scores, visible = _guarded_pairs(score, query, key, grid, scale), mask.tile(grid)
    sunk = scores.detach() == -torch.inf
    if bias is not None:
        scores = scores + bias.values(grid, scores.dtype)
    if visible is not None:
        scores, sunk = scores.masked_fill(~visible, -torch.inf), sunk & visible
    return scores.masked_fill(lost_pairs(scores, sunk), torch.nan), visible


def lost_pairs(scores: Tensor, sunk: Tensor) -> Tensor:
    """Visible pairs whose score is −inf by itself (`sunk`), in rows that see nothing better.

    A row is empty where the mask or the bias leaves it nothing. Where a query or its keys are infinite it is not: its
    weights are 0 / 0.
    """
    dead = (
        scores.detach().amax(-1, keepdim=True) == -torch.inf
        if scores.shape[-1]
        else sunk.any(-1, keepdim=True)
    )
    return sunk & dead


def _guarded_pairs(score: Score, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
    """Scores in which a row that is not finite touches only its own pairs, in the gradient too.

    The derivative of q·k for a hidden pair is 0·k, which is NaN where k is. So such rows are set to zero for the
    recorded scores, and their own pairs take the unrecorded ones.
    """
    lost_query = ~query.detach().isfinite().all(-1, keepdim=True)  # (b,h,q,1)
    lost_key = ~key.detach().isfinite().all(-1, keepdim=True)  # (b,g,k,1)
    clean = score.pairs(query.masked_fill(lost_query, 0), key.masked_fill(lost_key, 0), grid, scale)
    with torch.no_grad():
        raw = score.pairs(query, key, grid, scale)
    lost = lost_query | spread_heads(lost_key, query.shape[1]).mT
    return torch.where(lost, raw, clean)


@dataclass
class RowWeights:
    """Weights (b,h,q,k) in which a spoilt row, one that is not finite, does no harm to the gradients of others.

    The derivative of a row that nobody asked about is zero times its weights, which is NaN where they are. So the
    recorded weights of a spoilt row are those of finite scores, and its own are kept apart, unrecorded.
    """

    weights: Tensor
    own: Tensor | None = None  # None: no row is spoilt
    spoilt: Tensor | None = None  # (b,h,q,1)
    signal: Tensor | None = None  # (b,h,q,1): see `alarm`

    def shown(self, clean: Tensor, own: Tensor | None) -> Tensor:
        """What was made of the recorded weights, with what was made of the others in spoilt rows."""
        if own is None:
            return clean
        assert self.spoilt is not None and self.signal is not None
        return torch.where(self.spoilt, own, clean) + self.signal


def normalised(
    normalizer: Normalizer, scores: Tensor, visible: Tensor | None, sink: Tensor | None, grid: Grid
) -> RowWeights:
    """Weights (b,h,q,k); the sink takes its share as one more column that is then dropped."""
    weights = _weights(normalizer, scores, visible, sink, grid)
    if visible is None:
        return RowWeights(weights)
    spoilt = ~weights.detach().isfinite().all(-1, keepdim=True)
    if readable(spoilt) and not bool(spoilt.any()):
        return RowWeights(weights)
    finite = torch.where(spoilt, 0, scores).masked_fill(~visible, -torch.inf)
    if sink is not None:
        sink = sink.masked_fill(~sink.detach().isfinite(), 0)
    clean = _weights(normalizer, finite, visible, sink, grid)
    return RowWeights(clean, weights.detach(), spoilt, alarm(scores, spoilt))


def _weights(
    normalizer: Normalizer, scores: Tensor, visible: Tensor | None, sink: Tensor | None, grid: Grid
) -> Tensor:
    if sink is None:
        weights = normalizer.rows(scores)
    else:
        weights = normalizer.rows(with_sink(scores, sink, grid))[..., :-1]
    return weights if visible is None else weights.masked_fill(~visible, 0)


def alarm(scores: Tensor, spoilt: Tensor) -> Tensor:
    """Zeros (b,h,q,1) through which a gradient that does reach a spoilt row becomes infinite in its finite scores.

    0 stays 0 on the way, unlike 0 · NaN.
    """
    finite = torch.where(spoilt & scores.detach().isfinite(), scores, 0)
    return torch.where(spoilt, _steep(finite).sum(-1, keepdim=True), 0)


def _steep(numbers: Tensor) -> Tensor:
    """Zeros whose derivative overflows; NaN where a number is not finite."""
    largest = torch.finfo(numbers.dtype).max
    return (numbers - numbers.detach()) * largest * largest


def with_sink(scores: Tensor, sink: Tensor, grid: Grid) -> Tensor:
    """Scores with the sink's logit (h,) as a last column."""
    column = grid.pick(sink.view(1, -1, 1, 1)).to(scores.dtype)
    return torch.cat([scores, column.expand(*scores.shape[:3], 1)], -1)


def weighted_sum(weights: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """Σ_j a_ij v_j, (b,h,q,v), in which a hidden value is never read and a visible one that is not finite shows."""
    if visible is None:
        return apply(weights, value)
    finite = apply(weights, value.masked_fill(~value.detach().isfinite(), 0))
    with torch.no_grad():
        marks = torch.cat([value.isnan(), value == torch.inf, value == -torch.inf], -1)
        if readable(marks) and not bool(marks.any()):
            return finite
        seen = visible.expand_as(weights).to(weights.dtype)
        nan, high, low = (apply(seen, marks.to(weights.dtype)) > 0).chunk(3, -1)
    signal = torch.where(nan | high | low, _steep(weights).sum(-1, keepdim=True), 0)
    finite = torch.where(high, torch.inf, finite)
    return torch.where(nan | (high & low), torch.nan, torch.where(low, -torch.inf, finite)) + signal


def mixed(
    rows: RowWeights, value: Tensor, visible: Tensor | None, drop: Callable[[Tensor], Tensor]
) -> Tensor:
    """`weighted_sum` of weights after dropout, with spoilt rows apart."""
    output = weighted_sum(drop(rows.weights), value, visible)
    if rows.own is None:
        return output
    assert visible is not None and rows.spoilt is not None
    with torch.no_grad():
        own = weighted_sum(drop(rows.own), value, visible)
    steep = _steep(value.masked_fill(~value.detach().isfinite(), 0))
    signal = apply(visible.expand_as(rows.weights).to(value.dtype), steep)
    return rows.shown(output, own) + torch.where(rows.spoilt, signal, 0)


def apply(weights: Tensor, value: Tensor) -> Tensor:
    """weights (b,h,q,k) @ values (b,g,k,v), whose heads may be shared: (b,h,q,v)."""
    return torch.matmul(fold(weights, value.shape[1]), value).view(*weights.shape[:3], value.shape[3])


def log_sum_exp(scores: Tensor) -> Tensor:
    """log Σ exp over the last axis, (b,h,q); −inf, with gradient zero, for a row of −inf."""
    if scores.shape[-1] == 0:
        return scores.sum(-1) - torch.inf
    largest = scores.detach().amax(-1)
    dead, spoilt = largest == -torch.inf, ~(largest < torch.inf)
    found = torch.logsumexp(scores.masked_fill((dead | spoilt)[..., None], 0), -1).masked_fill(
        dead, -torch.inf
    )
    if not scores.requires_grad:
        return torch.where(spoilt, largest, found)
    return torch.where(spoilt, largest, found) + alarm(scores, spoilt[..., None])[..., 0]
