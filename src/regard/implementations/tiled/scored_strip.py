"""One strip of `tiled`: its queries, keys, mask and scores, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from regard.formula import formula
from regard.formula.dropout import drop
from regard.formula.request import Request
from regard.implementations.tiled.strips import KeyRun, Strip, strips
from regard.masks import Mask
from regard.normalizers import Softmax
from regard.scores.dot import fold
from regard.support.differentiate import summation_dtype
from regard.values.grid import Grid, full_grid

_MANY_PAIRS = 64  # pairs for each entry of a tensor from which its gradient is summed in a wider dtype
_BOUND = 1e30  # sums of products below this are far from float32's largest number


class TiledAttention:
    """A request whose score is one of pairs, ready to be computed strip by strip. Nothing here is recorded.

    `drops`: whether there is dropout, whose bits take memory of their own.
    """

    def __init__(self, request: Request, drops: bool = False) -> None:
        self.request, self.drops = request, drops
        self.sizes = request.sizes
        self.dtype = formula.accumulation_dtype(request.query.dtype)
        self.shared = request.query.shape[1] // max(1, request.key.shape[1])
        self.grid = full_grid(self.sizes, request.query.device)
        self.tiles: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    @cached_property
    def tiles_repeat(self) -> bool:
        """Whether the mask has equal tiles along a diagonal, in every batch entry and head."""
        mask = self.request.mask
        if mask is None or not mask.by_distance or 0 in self.sizes:
            return False
        first = mask.tile(self.grid.part(rows=slice(0, 1), columns=slice(0, 1)))
        return first.shape[:2] == (1, 1)

    def summation_dtype(self, tensor: Tensor) -> torch.dtype:
        """The dtype in which to sum the gradient of `tensor`: a wider one where many pairs share each entry."""
        many = tensor.numel() * _MANY_PAIRS <= math.prod(self.sizes)
        return summation_dtype(tensor) if many else self.dtype

    def scored_strips(self, value: Tensor | None) -> Iterator[ScoredStrip]:
        """Every strip that sees anything, with its scores."""
        finite = all_moderate(self, value)
        for strip in self.strips():
            if strip.runs:
                yield ScoredStrip(self, strip, value, finite)

    def strips(self) -> Iterator[Strip]:
        """Every strip; together they cover every row."""
        light = isinstance(self.request.normalizer, Softmax) and not self.drops
        return strips(self.request.mask, self.sizes, self.request.key.shape[1], self.request.query.device, light)

    def zero_empty_rows(self, output: Tensor) -> None:
        """Set the rows of an output (b,h,q,v) that see nothing to zero; no scored strip writes them."""
        for strip in self.strips():
            if not strip.runs:
                output[self.index(strip)] = 0

    def index(self, strip: Strip) -> tuple[slice, slice, slice]:
        """The index of a strip in (b,h,q,…)."""
        heads = slice(strip.groups.start * self.shared, strip.groups.stop * self.shared)
        return (strip.batch, heads, strip.rows)


class ScoredStrip:
    """A strip with its scores: queries (b,h,r,d), keys (b,g,c,d), values (b,g,c,v), scores (b,h,r,c)."""

    def __init__(self, attention: TiledAttention, strip: Strip, value: Tensor | None, finite: bool) -> None:
        self.attention, self.request, self.strip = attention, attention.request, strip
        self.index = attention.index(strip)
        self.spans = strip.spans
        self.grid = self._grid(self.spans)
        self.query = self.request.query[self.index].to(attention.dtype)
        self.key = self._gather(self.request.key)
        self.value = None if value is None else self._gather(value)
        visible = list(self._visible())
        if not finite:
            self._zero_hidden([(columns, seen) for columns, seen, _ in visible])
        scores = self.request.score.strip(self.query, self.key, self.grid, self.request.scale)
        minus_inf = None if finite else scores == -torch.inf
        if self.request.bias is not None:
            scores = scores.add_(self.request.bias.values(self.grid, scores.dtype))
        for columns, seen, penalty in visible:
            if finite:  # adding −inf is several times as fast as filling
                scores[..., columns] += penalty
            else:
                scores[..., columns] = scores[..., columns].masked_fill(~seen, -torch.inf)
        if minus_inf is not None:
            for columns, seen, _ in visible:
                minus_inf[..., columns] &= seen
            scores = scores.masked_fill_(formula.undefined_pairs(scores, minus_inf), torch.nan)
        self.scores = scores
        self.visible = [(columns, seen) for columns, seen, _ in visible]
        self.no_row_is_empty = finite and self.request.bias is None and self._no_row_is_empty(self.visible)
        self.finite = finite

    def weights(self, keep_scores: bool = True) -> Tensor:
        """The weights (b,h,r,c) before dropout, with the sink's column appended if there is a sink.

        `keep_scores=False`: the weights may overwrite the scores, which saves cache.
        """
        scores = self.scores
        if self.request.sink is not None:
            scores = formula.with_sink(scores, self.request.sink, self.grid)
        self.complete_scores = scores
        if not self.no_row_is_empty and scores.device.type == "cpu":  # cheaper than to repair empty rows for nothing
            self.no_row_is_empty = not bool((scores.amax(-1) == -torch.inf).any())
        if self.no_row_is_empty and not keep_scores and isinstance(self.request.normalizer, Softmax):
            return torch.softmax(scores, -1, out=scores)
        weights = (
            self.request.normalizer.nonempty_rows(scores)
            if self.no_row_is_empty
            else self.request.normalizer.rows(scores)
        )
        if not self.finite:  # hidden weights stay zero also in a row of NaN
            for columns, seen in self.visible:
                weights[..., columns] = weights[..., columns].masked_fill(~seen, 0)
        return weights

    @property
    def sees_all(self) -> bool:
        """Whether every score of this strip is above −inf."""
        return self.finite and self.request.bias is None and not self.visible

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are a softmax of the scores and of nothing else, in rows that see something."""
        return self.no_row_is_empty and isinstance(self.request.normalizer, Softmax) and self.request.sink is None

    def log_sum_exp(self, largest: Tensor) -> Tensor:
        """log Σ exp of the scores, (b,h,r), given the largest weight of each row."""
        if self.is_softmax:
            # The largest weight is exp(largest score − log-sum-exp), and a maximum is cheaper than a sum of exp.
            return self.scores.amax(-1) - largest.log()
        return formula.log_sum_exp(self.scores)

    def scores_backward(
        self, weights: Tensor, grad_weights: Tensor, grad_logsumexp: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The gradient of the complete scores, the sink's column included, and of the normaliser's own tensors."""
        scores = self.complete_scores
        if self.request.sink is not None:
            grad_weights = torch.cat([grad_weights, torch.zeros_like(grad_weights[..., :1])], -1)
        grad, to_normalizer = self.request.normalizer.backward(scores, weights, grad_weights)
        if grad_logsumexp is not None:
            grad[..., : self.scores.shape[-1]] += Softmax().rows(self.scores) * grad_logsumexp[self.index][..., None]
        if not self.finite:
            for columns, seen in self.visible:
                grad[..., columns] = grad[..., columns].masked_fill(~seen, 0)
        return grad, to_normalizer

    def weights_among_others(self, logsumexp: Tensor) -> Tensor:
        """The softmax weights of these keys among others, given the log-sum-exp (b,h,q) of all of them."""
        weights = torch.exp(self.scores - logsumexp[self.index][..., None])
        return weights.masked_fill_(self.scores == -torch.inf, 0)

    def share_backward(
        self, weights: Tensor, grad_weights: Tensor, grad: Tensor, output: Tensor, grad_logsumexp: Tensor | None
    ) -> Tensor:
        """The gradient of the scores for weights among others; `output` (b,h,q,v) is that over all keys."""
        inner = (grad * output[self.index]).masked_fill_(grad == 0, 0).sum(-1)  # no 0 · NaN
        if grad_logsumexp is not None:
            inner = inner - grad_logsumexp[self.index]
        found = weights * (grad_weights - inner[..., None])
        if not self.finite:
            for columns, seen in self.visible:
                found[..., columns] = found[..., columns].masked_fill(~seen, 0)
        return found

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add a gradient (b,g,c,…) of this strip's keys or values to that of all of them."""
        offset = 0
        for span in self.spans:
            length = span.stop - span.start
            total[self.strip.batch, self.strip.groups, span] += part[:, :, offset : offset + length]
            offset += length

    def with_dropout(self, weights: Tensor, seed: Tensor | None, probability: float) -> Tensor:
        """Dropout of weights or, with the same bits, of their gradient."""
        return drop(weights, self.grid, seed, probability)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_j a_ij v_j, (b,h,r,v)."""
        assert self.value is not None
        return formula.apply(weights, self.value)

    def folded(self, rows: Tensor) -> Tensor:
        """(b,h,r,x) with the rows of the heads that share a key head concatenated."""
        return fold(rows, self.key.shape[1])

    def _grid(self, spans: list[slice]) -> Grid:
        columns: slice | Tensor = spans[0]
        if len(spans) > 1:
            columns = torch.cat([self.attention.grid.column[span] for span in spans])
        batch, heads, rows = self.index
        return self.attention.grid.part(batch=batch, heads=heads, rows=rows, columns=columns)

    def _gather(self, keys: Tensor) -> Tensor:
        parts = [keys[self.strip.batch, self.strip.groups, span] for span in self.spans]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).to(self.attention.dtype)

    def _visible(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For each run that the mask hides in part: its columns in this strip, what is visible there, and the same as
        numbers to add (0 or −inf)."""
        offset = 0
        for run in self.strip.runs:
            columns = slice(offset, offset + run.stop - run.start)
            offset = columns.stop
            if run.partial and self.request.mask is not None:
                yield columns, *self._tile(self.request.mask, run)

    def _tile(self, mask: Mask, run: KeyRun) -> tuple[Tensor, Tensor]:
        """The mask on one run. Tiles that repeat along a diagonal are cached."""
        rows, tiles = self.strip.rows, self.attention.tiles
        key = (run.start - rows.start, rows.stop - rows.start, run.stop - run.start)
        if key in tiles:
            return tiles[key]
        seen = mask.tile(self._grid([slice(run.start, run.stop)]))
        zero = torch.zeros((), dtype=self.attention.dtype, device=seen.device)
        tile = (seen, torch.where(seen, zero, zero - torch.inf))
        if self.attention.tiles_repeat:
            tiles[key] = tile
        return tile

    def _no_row_is_empty(self, visible: list[tuple[slice, Tensor]]) -> bool:
        if any(not run.partial for run in self.strip.runs):
            return True
        return any(bool(seen.any(-1).all()) for _, seen in visible)

    def _zero_hidden(self, visible: list[tuple[slice, Tensor]]) -> None:
        """Set to zero the keys that no row of this strip sees and the rows that see no key: 0 · NaN would be NaN."""
        rows_see = self.query.new_full(
            (1, 1, self.query.shape[2], 1), any(not run.partial for run in self.strip.runs), dtype=torch.bool
        )
        key = self.key.clone()
        value = None if self.value is None else self.value.clone()
        for columns, seen in visible:
            rows_see = rows_see | seen.any(-1, keepdim=True)
            seen = seen.any(-2)  # (b|1,h|1,c)
            if seen.shape[1] > 1:
                seen = seen.unflatten(1, (-1, self.attention.shared)).any(2)
            unseen = ~seen[..., None]
            key[:, :, columns] = key[:, :, columns].masked_fill(unseen, 0)
            if value is not None:
                value[:, :, columns] = value[:, :, columns].masked_fill(unseen, 0)
        self.key, self.value = key, value
        self.query = self.query.masked_fill(~rows_see, 0)


def all_moderate(attention: TiledAttention, value: Tensor | None) -> bool:
    """Whether every score and every product with a hidden entry is finite, so that masking by adding −inf is safe.

    Only checked on a CPU: on a GPU it would have to wait for the device.
    """
    request = attention.request
    if request.query.device.type != "cpu" or 0 in attention.sizes:
        return False
    largest = 1.0
    for tensor in (request.query, request.key, *request.score.tensors):
        low, high = (float(end) for end in torch.aminmax(tensor))
        largest *= max(-low, high, 1.0) if low == low else torch.inf
    if not largest * max(1.0, abs(request.scale)) * request.query.shape[3] < _BOUND:
        return False
    # The backward pass multiplies hidden values by the gradient of the output, of which nothing is known yet.
    if value is not None and value.numel() and not float(torch.stack(torch.aminmax(value)).abs().amax()) < _BOUND**0.5:
        return False
    floats = request.bias.tensors if request.bias is not None else ()
    return all(float(tensor.max()) < _BOUND for tensor in floats if tensor.numel())
