"""One strip of `tiled`: its queries, keys, mask and scores, forwards and backwards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.biases import Bias
from regard.core import formula
from regard.core.differentiate import summation
from regard.core.dropout import drop
from regard.core.grid import Grid, Sizes, whole
from regard.implementations.tiled.strips import KeyRun, Strip, strips
from regard.masks import Mask
from regard.normalizers import Normalizer, Softmax
from regard.scores import Score
from regard.scores.dot import fold

_MANY_PAIRS = 64  # so many pairs for each entry of a tensor make its gradient worth a wider sum
_TAME = 1e30  # products below this, added up over any dimension, are far from float32's largest number


@dataclass
class TiledAttention:
    """A request whose score is one of pairs, ready to be walked strip by strip. Nothing here is recorded."""

    query: Tensor  # (b,h,q,d)
    key: Tensor  # (b,g,k,d)
    score: Score
    mask: Mask | None
    bias: Bias | None
    normalizer: Normalizer
    scale: float
    sink: Tensor | None
    drops: bool = False  # whether there is dropout, whose bits take memory of their own

    def __post_init__(self) -> None:
        batch, heads, queries, _ = self.query.shape
        self.sizes: Sizes = (batch, heads, queries, self.key.shape[2])
        self.dtype = formula.accumulator(self.query.dtype)
        self.shared = self.query.shape[1] // max(1, self.key.shape[1])
        self.grid = whole(self.sizes, self.query.device)
        self.tiles: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def summation(self, tensor: Tensor) -> torch.dtype:
        """The dtype to add up the gradient of `tensor` in: a wider one where many pairs share each of its entries."""
        many = tensor.numel() * _MANY_PAIRS <= math.prod(self.sizes)
        return summation(tensor) if many else self.dtype

    def pieces(self, value: Tensor | None) -> Iterator[ScoredStrip]:
        """Every strip that sees anything, scored."""
        tame = _tame(self, value)
        for strip in self.strips():
            if strip.runs:
                yield ScoredStrip(self, strip, value, tame)

    def strips(self) -> Iterator[Strip]:
        """Every strip; together they hold every row."""
        light = isinstance(self.normalizer, Softmax) and not self.drops
        return strips(self.mask, self.sizes, self.key.shape[1], self.query.device, light)

    def blank_rows(self, output: Tensor) -> None:
        """Set the rows of an output (b,h,q,v) that see nothing to zero; no strip will write them."""
        for strip in self.strips():
            if not strip.runs:
                output[self.place(strip)] = 0

    def place(self, strip: Strip) -> tuple[slice, slice, slice]:
        """Where a strip lies in (b,h,q,…)."""
        heads = slice(strip.groups.start * self.shared, strip.groups.stop * self.shared)
        return (strip.batch, heads, strip.rows)


class ScoredStrip:
    """A strip with its scores: queries (b,h,r,d), keys (b,g,c,d), values (b,g,c,v), scores (b,h,r,c)."""

    def __init__(self, attention: TiledAttention, strip: Strip, value: Tensor | None, tame: bool) -> None:
        self.attention, self.strip = attention, strip
        self.place = attention.place(strip)
        self.spans = strip.spans
        self.grid = self._grid(self.spans)
        self.query = attention.query[self.place].to(attention.dtype)
        self.key = self._gather(attention.key)
        self.value = None if value is None else self._gather(value)
        visible = list(self._visible())
        if not tame:
            self._blank_hidden([(columns, seen) for columns, seen, _ in visible])
        scores = attention.score.strip(self.query, self.key, self.grid, attention.scale)
        sunk = None if tame else scores == -torch.inf
        if attention.bias is not None:
            scores = scores.add_(attention.bias.values(self.grid, scores.dtype))
        for columns, seen, penalty in visible:
            if tame:  # adding is several times as fast as filling
                scores[..., columns] += penalty
            else:
                scores[..., columns] = scores[..., columns].masked_fill(~seen, -torch.inf)
        if sunk is not None:
            for columns, seen, _ in visible:
                sunk[..., columns] &= seen
            scores = scores.masked_fill_(formula.lost_pairs(scores, sunk), torch.nan)
        self.scores = scores
        self.visible = [(columns, seen) for columns, seen, _ in visible]
        self.alive = tame and attention.bias is None and self._every_row_sees(self.visible)
        self.tame = tame

    def weights(self, keep_scores: bool = True) -> Tensor:
        """The weights (b,h,r,c) before dropout, and the sink's column behind them where there is one.

        `keep_scores=False`: the weights may take the scores' place in memory, which spares the cache.
        """
        attention, scores = self.attention, self.scores
        if attention.sink is not None:
            scores = formula.with_sink(scores, attention.sink, self.grid)
        self.complete_scores = scores
        if (
            not self.alive and scores.device.type == "cpu"
        ):  # to look is cheaper than to mend rows without need
            self.alive = not bool((scores.amax(-1) == -torch.inf).any())
        if self.alive and not keep_scores and isinstance(attention.normalizer, Softmax):
            return torch.softmax(scores, -1, out=scores)
        weights = attention.normalizer.live_rows(scores) if self.alive else attention.normalizer.rows(scores)
        if not self.tame:  # in a row that is NaN, what is hidden stays at zero
            for columns, seen in self.visible:
                weights[..., columns] = weights[..., columns].masked_fill(~seen, 0)
        return weights

    @property
    def sees_all(self) -> bool:
        """Whether every score of this strip is above −inf."""
        return self.tame and self.attention.bias is None and not self.visible

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are a softmax of the scores and of nothing else, in rows that see something."""
        return self.alive and isinstance(self.attention.normalizer, Softmax) and self.attention.sink is None

    def log_sum_exp(self, largest: Tensor) -> Tensor:
        """log Σ exp of the scores, (b,h,r), given the largest weight of each row."""
        if self.is_softmax:
            # That weight is exp(largest score − log-sum-exp), and a maximum is cheaper than a sum of exp.
            return self.scores.amax(-1) - largest.log()
        return formula.log_sum_exp(self.scores)

    def scores_backward(
        self, weights: Tensor, grad_weights: Tensor, grad_logsumexp: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The gradient of the complete scores, the sink's column included, and of the normaliser's own tensors."""
        attention, scores = self.attention, self.complete_scores
        if attention.sink is not None:
            grad_weights = torch.cat([grad_weights, torch.zeros_like(grad_weights[..., :1])], -1)
        grad, to_normalizer = attention.normalizer.backward(scores, weights, grad_weights)
        if grad_logsumexp is not None:
            grad[..., : self.scores.shape[-1]] += (
                Softmax().rows(self.scores) * grad_logsumexp[self.place][..., None]
            )
        if not self.tame:
            for columns, seen in self.visible:
                grad[..., columns] = grad[..., columns].masked_fill(~seen, 0)
        return grad, to_normalizer

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add a gradient (b,g,c,…) of this strip's keys or values to that of all of them."""
        offset = 0
        for span in self.spans:
            length = span.stop - span.start
            total[self.strip.batch, self.strip.groups, span] += part[:, :, offset : offset + length]
            offset += length

    def dropped(self, weights: Tensor, seed: Tensor | None, probability: float) -> Tensor:
        """Dropout of weights or, the same bits again, of their gradient."""
        return drop(weights, self.grid, seed, probability)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_j a_ij v_j, (b,h,r,v)."""
        assert self.value is not None
        return formula.apply(weights, self.value)

    def folded(self, rows: Tensor) -> Tensor:
        """(b,h,r,x) with the heads that share a key head laid below each other."""
        return fold(rows, self.key.shape[1])

    def _grid(self, spans: list[slice]) -> Grid:
        columns: slice | Tensor = spans[0]
        if len(spans) > 1:
            columns = torch.cat([self.attention.grid.column[span] for span in spans])
        batch, heads, rows = self.place
        return self.attention.grid.part(batch=batch, heads=heads, rows=rows, columns=columns)

    def _gather(self, keys: Tensor) -> Tensor:
        parts = [keys[self.strip.batch, self.strip.groups, span] for span in self.spans]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).to(self.attention.dtype)

    def _visible(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For each run in which the mask has a say: its columns in this strip, what is visible there, and the
        same as numbers to add (0 or −inf)."""
        offset = 0
        for run in self.strip.runs:
            columns = slice(offset, offset + run.stop - run.start)
            offset = columns.stop
            if run.partial and self.attention.mask is not None:
                yield columns, *self._tile(self.attention.mask, run)

    def _tile(self, mask: Mask, run: KeyRun) -> tuple[Tensor, Tensor]:
        """A mask that looks at distances alone gives the same tile for every strip along a diagonal."""
        rows, tiles = self.strip.rows, self.attention.tiles
        place = (run.start - rows.start, rows.stop - rows.start, run.stop - run.start)
        if place in tiles:
            return tiles[place]
        seen = mask.tile(self._grid([slice(run.start, run.stop)]))
        zero = torch.zeros((), dtype=self.attention.dtype, device=seen.device)
        tile = (seen, torch.where(seen, zero, zero - torch.inf))
        if mask.by_distance:
            tiles[place] = tile
        return tile

    def _every_row_sees(self, visible: list[tuple[slice, Tensor]]) -> bool:
        if any(not run.partial for run in self.strip.runs):
            return True
        return any(bool(seen.any(-1).all()) for _, seen in visible)

    def _blank_hidden(self, visible: list[tuple[slice, Tensor]]) -> None:
        """Set to zero the keys no row of this strip sees, and the rows that see no key: 0 · NaN would be NaN."""
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


def _tame(attention: TiledAttention, value: Tensor | None) -> bool:
    """Whether every score is finite and no hidden entry can spoil a sum, so that the cheap way of masking is safe.

    Only a CPU can look: on a GPU it would mean to wait for the device.
    """
    if attention.query.device.type != "cpu" or 0 in attention.sizes:
        return False
    largest = 1.0
    for tensor in (attention.query, attention.key, *attention.score.tensors):
        low, high = (float(end) for end in torch.aminmax(tensor))
        largest *= max(-low, high, 1.0) if low == low else torch.inf
    if not largest * max(1.0, abs(attention.scale)) * attention.query.shape[3] < _TAME:
        return False
    # In the backward pass hidden values meet the gradient of the output, of which nothing is known yet.
    if (
        value is not None
        and value.numel()
        and not float(torch.stack(torch.aminmax(value)).abs().amax()) < _TAME**0.5
    ):
        return False
    floats = attention.bias.tensors if attention.bias is not None else ()
    return all(float(tensor.max()) < _TAME for tensor in floats if tensor.numel())
