"""The mathematics of attention, written once in plain differentiable torch.

`reference` runs this and `weights` returns it. Each step keeps the promises by itself: what a mask hides is never read,
not even through 0 · NaN, and visible non-finite numbers stay visible in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.biases import Bias
from regard.masks import Mask
from regard.normalizers import Normalizer
from regard.scores import Score
from regard.scores.base import spread_heads
from regard.scores.dot import fold
from regard.support.arguments import readable
from regard.support.differentiate import recorded
from regard.values.grid import Grid


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """The tensor in its accumulation dtype: float64 stays."""
    return tensor.to(accumulation_dtype(tensor.dtype))


def masked_scores(
    score: Score, query: Tensor, key: Tensor, mask: Mask | None, bias: Bias | None, grid: Grid, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Biased scores (b,h,q,k) with −inf where hidden, and what is visible (None: everything)."""
    if mask is None:
        scores, visible = score.pairs(query, key, grid, scale), None
    else:
        scores, visible = _guarded_pairs(score, query, key, grid, scale), mask.tile(grid)
    minus_inf = scores.detach() == -torch.inf
    if bias is not None:
        scores = scores + bias.values(grid, scores.dtype)
    if visible is not None:
        scores, minus_inf = scores.masked_fill(~visible, -torch.inf), minus_inf & visible
    return scores.masked_fill(undefined_pairs(scores, minus_inf), torch.nan), visible


def undefined_pairs(scores: Tensor, minus_inf: Tensor) -> Tensor:
    """Visible pairs whose own score is −inf (`minus_inf`), in rows whose largest score is −inf.

    A row counts as empty only where the mask or the bias leaves it nothing. Where an infinite query or infinite keys
    made all its scores −inf, its weights are 0 / 0.
    """
    if scores.shape[-1]:
        undefined = scores.detach().amax(-1, keepdim=True) == -torch.inf
    else:
        undefined = minus_inf.any(-1, keepdim=True)
    return minus_inf & undefined


def _guarded_pairs(score: Score, query: Tensor, key: Tensor, grid: Grid, scale: float) -> Tensor:
    """Scores in which a non-finite query or key affects only its own pairs, in the gradient too.

    The derivative of q·k for a hidden pair is 0·k, which is NaN where k is. So the recorded scores are computed with
    such rows set to zero, and their own pairs take the scores that were computed without recording.
    """
    if not recorded():
        return score.pairs(query, key, grid, scale)
    nonfinite_query = ~query.detach().isfinite().all(-1, keepdim=True)  # (b,h,q,1)
    nonfinite_key = ~key.detach().isfinite().all(-1, keepdim=True)  # (b,g,k,1)
    clean = score.pairs(query.masked_fill(nonfinite_query, 0), key.masked_fill(nonfinite_key, 0), grid, scale)
    with torch.no_grad():
        raw = score.pairs(query, key, grid, scale)
    nonfinite = nonfinite_query | spread_heads(nonfinite_key, query.shape[1]).mT
    return torch.where(nonfinite, raw, clean)


@dataclass
class RowWeights:
    """Weights (b,h,q,k) whose non-finite rows do not make the gradients of other rows NaN.

    A row with an upstream gradient of zero contributes zero times its weights, which is NaN where they are. So the
    recorded weights of a non-finite row are those of finite scores; its real weights are kept beside them, unrecorded.
    """

    weights: Tensor
    raw: Tensor | None = None  # the real weights; None: every row is finite
    nonfinite: Tensor | None = None  # bool (b,h,q,1)
    poison: Tensor | None = None  # (b,h,q,1): see `poison_gradient`

    def merge(self, clean: Tensor, raw: Tensor | None) -> Tensor:
        """`clean`, computed from the recorded weights; in non-finite rows `raw`, computed from the real ones."""
        if raw is None:
            return clean
        assert self.nonfinite is not None and self.poison is not None
        return torch.where(self.nonfinite, raw, clean) + self.poison


def normalize_rows(
    normalizer: Normalizer, scores: Tensor, visible: Tensor | None, sink: Tensor | None, grid: Grid
) -> RowWeights:
    """Weights (b,h,q,k). The sink is one more column, which takes weight and is then cut off."""
    weights = _weights(normalizer, scores, visible, sink, grid)
    if visible is None or not recorded():
        return RowWeights(weights)
    nonfinite = ~weights.detach().isfinite().all(-1, keepdim=True)
    if readable(nonfinite) and not bool(nonfinite.any()):
        return RowWeights(weights)
    finite = torch.where(nonfinite, 0, scores).masked_fill(~visible, -torch.inf)
    if sink is not None:
        sink = sink.masked_fill(~sink.detach().isfinite(), 0)
    clean = _weights(normalizer, finite, visible, sink, grid)
    return RowWeights(clean, weights.detach(), nonfinite, poison_gradient(scores, nonfinite))


def _weights(normalizer: Normalizer, scores: Tensor, visible: Tensor | None, sink: Tensor | None, grid: Grid) -> Tensor:
    if sink is None:
        weights = normalizer.rows(scores)
    else:
        weights = normalizer.rows(with_sink(scores, sink, grid))[..., :-1]
    return weights if visible is None else weights.masked_fill(~visible, 0)


def poison_gradient(scores: Tensor, nonfinite: Tensor) -> Tensor:
    """Zeros (b,h,q,1) that turn any non-zero gradient of a non-finite row into an infinite one of its finite scores.

    A gradient of zero stays zero, where 0 · NaN would be NaN.
    """
    finite = torch.where(nonfinite & scores.detach().isfinite(), scores, 0)
    return torch.where(nonfinite, zeros_with_infinite_slope(finite).sum(-1, keepdim=True), 0)


def zeros_with_infinite_slope(numbers: Tensor) -> Tensor:
    """Zeros whose derivative overflows to infinity; NaN where a number is not finite."""
    largest = torch.finfo(numbers.dtype).max
    return (numbers - numbers.detach()) * largest * largest


def with_sink(scores: Tensor, sink: Tensor, grid: Grid) -> Tensor:
    """Scores with the sink's logit (h,) as a last column."""
    column = grid.pick(sink.view(1, -1, 1, 1)).to(scores.dtype)
    return torch.cat([scores, column.expand(*scores.shape[:3], 1)], -1)


def weighted_sum(weights: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """Σ_j a_ij v_j, (b,h,q,v), in which a hidden value is never read and a visible non-finite one stays visible."""
    if visible is None:
        return apply(weights, value)
    finite = apply(weights, value.masked_fill(~value.detach().isfinite(), 0))
    with torch.no_grad():
        marks = torch.cat([value.isnan(), value == torch.inf, value == -torch.inf], -1)
        if readable(marks) and not bool(marks.any()):
            return finite
        visible_pairs = visible.expand_as(weights).to(weights.dtype)
        nan, high, low = (apply(visible_pairs, marks.to(weights.dtype)) > 0).chunk(3, -1)
    total = torch.where(low, -torch.inf, torch.where(high, torch.inf, finite))
    total = torch.where(nan | (high & low), torch.nan, total)
    if not recorded():
        return total
    return total + torch.where(nan | high | low, zeros_with_infinite_slope(weights).sum(-1, keepdim=True), 0)


def mix_values(rows: RowWeights, value: Tensor, visible: Tensor | None, drop: Callable[[Tensor], Tensor]) -> Tensor:
    """`weighted_sum` of weights after dropout; non-finite rows are computed apart."""
    output = weighted_sum(drop(rows.weights), value, visible)
    if rows.raw is None:
        return output
    assert visible is not None and rows.nonfinite is not None
    with torch.no_grad():
        raw = weighted_sum(drop(rows.raw), value, visible)
    steep = zeros_with_infinite_slope(value.masked_fill(~value.detach().isfinite(), 0))
    poison = apply(visible.expand_as(rows.weights).to(value.dtype), steep)
    return rows.merge(output, raw) + torch.where(rows.nonfinite, poison, 0)


def apply(weights: Tensor, value: Tensor) -> Tensor:
    """weights (b,h,q,k) @ values (b,g,k,v), each head of which may serve several query heads: (b,h,q,v)."""
    return torch.matmul(fold(weights, value.shape[1]), value).view(*weights.shape[:3], value.shape[3])


def log_sum_exp(scores: Tensor) -> Tensor:
    """log Σ exp over the last axis, (b,h,q); −inf, with gradient zero, for a row of −inf."""
    if scores.shape[-1] == 0:
        return scores.sum(-1) - torch.inf
    largest = scores.detach().amax(-1)
    empty, nonfinite = largest == -torch.inf, ~(largest < torch.inf)
    log_sum = torch.logsumexp(scores.masked_fill((empty | nonfinite)[..., None], 0), -1).masked_fill(empty, -torch.inf)
    if not scores.requires_grad:
        return torch.where(nonfinite, largest, log_sum)
    return torch.where(nonfinite, largest, log_sum) + poison_gradient(scores, nonfinite[..., None])[..., 0]
