"""One strip of `tiled`: its queries, keys, mask and scores, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from regard.formula import formula
from regard.formula.request import Request
from regard.implementations.tiled.layout import PlacedStrip, StripLayout, Tile, VisibleTiles, layout_of, tiles_repeat
from regard.normalizers import Softmax
from regard.support.differentiate import summation_dtype

_MANY_PAIRS = 64  # pairs for each entry of a tensor from which its gradient is summed in a wider dtype
_BOUND = 1e30  # sums of products below this are far from float32's largest number


class TiledAttention:
    """A request whose score is one of pairs, ready to be computed strip by strip. Nothing here is recorded.

    `drops`: whether there is dropout, whose bits take memory of their own.
    """

    def __init__(self, request: Request, drops: bool = False, layout: StripLayout | None = None) -> None:
        self.request, self.layout = request, layout_of(request, drops) if layout is None else layout
        self.sizes, self.dtype = self.layout.sizes, self.layout.dtype
        self._tiles: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def summation_dtype(self, tensor: Tensor) -> torch.dtype:
        """The dtype in which to sum the gradient of `tensor`: a wider one where many pairs share each entry."""
        many = tensor.numel() * _MANY_PAIRS <= math.prod(self.sizes)
        return summation_dtype(tensor) if many else self.dtype

    def scored_strips(self, value: Tensor | None, output: Tensor | None = None) -> Iterator[ScoredStrip]:
        """Every strip that sees anything, with its scores. Rows of `output` (b,h,q,v) that see nothing become zero."""
        finite, layout, mask = all_moderate(self.request, value), self.layout, self.request.mask
        for place in layout.walk(mask) if layout.places is None else layout.places:
            if place.strip.runs:
                yield ScoredStrip(self, place, value, finite)
            elif output is not None:
                output[place.index] = 0

    @cached_property
    def _tiles_repeat(self) -> bool:
        return self.request.mask is not None and tiles_repeat(self.request.mask, self.layout.grid)

    def shown(self, place: PlacedStrip) -> VisibleTiles:
        """What the mask shows of a place. Tiles that repeat along a diagonal are computed once."""
        mask, runs, rows = self.request.mask, place.strip.runs, place.strip.rows
        tiles: list[Tile] = []
        offset = new_bytes = 0
        for run in runs:
            columns = slice(offset, offset + run.stop - run.start)
            offset = columns.stop
            if mask is None or not run.partial:
                continue
            key = (run.start - rows.start, rows.stop - rows.start, run.stop - run.start)
            pair = self._tiles.get(key)
            if pair is None:
                visible = mask.tile(place.grid if len(runs) == 1 else self.layout.part(place, run))
                zero = torch.zeros((), dtype=self.dtype, device=visible.device)
                pair = (visible, torch.where(visible, zero, zero - torch.inf))
                new_bytes += visible.numel() + pair[1].nbytes
                if rows.stop - rows.start < self.sizes[2] and self._tiles_repeat:
                    self._tiles[key] = pair
            tiles.append(Tile(columns, *pair))
        no_row_is_empty = len(tiles) < len(runs)
        if not no_row_is_empty and self.layout.device.type == "cpu":  # on a GPU, reading a tile would wait for it
            for tile in tiles:
                no_row_is_empty = no_row_is_empty or bool(tile.visible.any(-1).all())
        shown = VisibleTiles(tuple(tiles), no_row_is_empty)
        if self.layout.keeps_tiles:
            self.layout.keep(place, shown, new_bytes)
        return shown


class ScoredStrip:
    """A strip with its scores: queries (b,h,r,d), keys (b,g,c,d), values (b,g,c,v), scores (b,h,r,c)."""

    def __init__(self, attention: TiledAttention, place: PlacedStrip, value: Tensor | None, finite: bool) -> None:
        self.attention, self.request, self.strip = attention, attention.request, place.strip
        self.index, self.spans, self.grid = place.index, place.spans, place.grid
        self.query = self.request.query[self.index].to(attention.dtype)
        self.key = self._gather(self.request.key)
        self.value = None if value is None else self._gather(value)
        shown = attention.shown(place) if place.shown is None else place.shown
        if not finite:
            self._zero_hidden(shown.tiles)
        scores = self.request.score.strip(self.query, self.key, self.grid, self.request.scale)
        minus_inf = None if finite else scores == -torch.inf
        if self.request.bias is not None:
            scores = scores.add_(self.request.bias.values(self.grid, scores.dtype))
        for columns, visible, penalty in shown.tiles:
            if finite:  # adding −inf is several times as fast as filling
                scores[..., columns] += penalty
            else:
                scores[..., columns] = scores[..., columns].masked_fill(~visible, -torch.inf)
        if minus_inf is not None:
            for columns, visible, _ in shown.tiles:
                minus_inf[..., columns] &= visible
            scores = scores.masked_fill_(formula.undefined_pairs(scores, minus_inf), torch.nan)
        self.scores, self.tiles, self.finite = scores, shown.tiles, finite
        self.no_row_is_empty = finite and self.request.bias is None and shown.no_row_is_empty

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
            for columns, visible, _ in self.tiles:
                weights[..., columns] = weights[..., columns].masked_fill(~visible, 0)
        return weights

    @property
    def sees_all(self) -> bool:
        """Whether every score of this strip is above −inf."""
        return self.finite and self.request.bias is None and not self.tiles

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
            for columns, visible, _ in self.tiles:
                grad[..., columns] = grad[..., columns].masked_fill(~visible, 0)
        return grad, to_normalizer

    def weights_among_others(self, logsumexp: Tensor) -> Tensor:
        """The softmax weights of these keys among others, given the log-sum-exp (b,h,q) of all of them."""
        weights = torch.exp(self.scores - logsumexp[self.index][..., None])
        return weights.masked_fill_(self.scores == -torch.inf, 0)

    def share_backward(
        self, weights: Tensor, grad_weights: Tensor, grad: Tensor, output: Tensor, grad_logsumexp: Tensor | None
    ) -> Tensor:
        """The gradient of the scores for weights among others; `output` (b,h,q,v) is that over all keys."""
        row_means = (grad * output[self.index]).masked_fill_(grad == 0, 0).sum(-1)  # no 0 · NaN
        if grad_logsumexp is not None:
            row_means = row_means - grad_logsumexp[self.index]
        gradient = weights * (grad_weights - row_means[..., None])
        if not self.finite:
            for columns, visible, _ in self.tiles:
                gradient[..., columns] = gradient[..., columns].masked_fill(~visible, 0)
        return gradient

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add a gradient (b,g,c,…) of this strip's keys or values to that of all of them."""
        offset = 0
        for span in self.spans:
            length = span.stop - span.start
            total[self.strip.batch, self.strip.groups, span] += part[:, :, offset : offset + length]
            offset += length

    def _gather(self, keys: Tensor) -> Tensor:
        batch, groups, spans = self.strip.batch, self.strip.groups, self.spans
        if len(spans) == 1:
            return keys[batch, groups, spans[0]].to(self.attention.dtype)
        return torch.cat([keys[batch, groups, span] for span in spans], 2).to(self.attention.dtype)

    def _zero_hidden(self, tiles: tuple[Tile, ...]) -> None:
        """Set to zero the keys that no row of this strip sees and the rows that see no key: 0 · NaN would be NaN."""
        rows_see = self.query.new_full(
            (1, 1, self.query.shape[2], 1), any(not run.partial for run in self.strip.runs), dtype=torch.bool
        )
        key = self.key.clone()
        value = None if self.value is None else self.value.clone()
        for columns, visible, _ in tiles:
            rows_see = rows_see | visible.any(-1, keepdim=True)
            visible = visible.any(-2)  # (b|1,h|1,c)
            if visible.shape[1] > 1:
                visible = visible.unflatten(1, (-1, self.attention.layout.shared)).any(2)
            unseen = ~visible[..., None]
            key[:, :, columns] = key[:, :, columns].masked_fill(unseen, 0)
            if value is not None:
                value[:, :, columns] = value[:, :, columns].masked_fill(unseen, 0)
        self.key, self.value = key, value
        self.query = self.query.masked_fill(~rows_see, 0)


def all_moderate(request: Request, value: Tensor | None) -> bool:
    """Whether every score and every product with a hidden entry is finite, so that masking by adding −inf is safe.

    Only checked on a CPU: on a GPU it would have to wait for the device.
    """
    if request.query.device.type != "cpu" or not request.query.numel() or not request.key.numel():
        return False
    largest = 1.0
    for tensor in (request.query, request.key, *request.score.tensors):
        least, most = torch.aminmax(tensor)
        low, high = float(least), float(most)
        largest *= max(-low, high, 1.0) if low == low else torch.inf
    if not largest * max(1.0, abs(request.scale)) * request.query.shape[3] < _BOUND:
        return False
    # The backward pass multiplies hidden values by the gradient of the output, of which nothing is known yet.
    if value is not None and value.numel() and not float(torch.stack(torch.aminmax(value)).abs().amax()) < _BOUND**0.5:
        return False
    floats = request.bias.tensors if request.bias is not None else ()
    return not floats or all(float(tensor.max()) < _BOUND for tensor in floats if tensor.numel())
