"""`co-attention`: streams of different kinds (sound, picture, text) attend to each other, for one answer."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.nn.interactive import Interactive
from regard.nn.parts.blocks import FeedForward, Residual
from regard.support.arguments import whole_number
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask, pooled
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

# What is shown of two streams that attend to each other.
BETWEEN = ("layers.-1.between.0.to_query", "layers.-1.between.0.to_source")
TOLD = ("the second stream's attention to the first", "the first stream's attention to the second")


class CoAttentionLayer(nn.Module):
    """Each pair of streams attends to each other (`interactive`), then each stream has a feed-forward block.

    Without `interaction` the same weights attend within each stream.
    """

    def __init__(self, streams: int, dim: int, num_heads: int, dropout: float, interaction: bool) -> None:
        super().__init__()
        self.interaction = interaction
        self.pairs = list(itertools.combinations(range(streams), 2))
        self.between = nn.ModuleList(Interactive(dim, num_heads) for _ in self.pairs)
        self.around = nn.ModuleList(nn.ModuleList(Residual(dim, dropout=dropout) for _ in pair) for pair in self.pairs)
        self.feed_forward = nn.ModuleList(FeedForward(dim, 2 * dim, dropout=dropout) for _ in range(streams))
        self.around_feed_forward = nn.ModuleList(Residual(dim, dropout=dropout) for _ in range(streams))

    def forward(self, rows: list[Tensor], keeps: list[Tensor | None]) -> list[Tensor]:
        """The rows (b,n,dim) of each stream, of which `keeps` (b,n) are real."""
        rows = list(rows)
        for (i, j), between, around in zip(self.pairs, self.between, self.around, strict=True):
            assert isinstance(between, Interactive) and isinstance(around, nn.ModuleList)
            a, b = around[0].enter(rows[i]), around[1].enter(rows[j])  # type: ignore[operator]
            if self.interaction:
                attended = between.both(a, b, keeps[i], keeps[j])
            else:
                attended_a = between.to_source(a, mask=padding_mask(keeps[i]))
                attended = attended_a, between.to_query(b, mask=padding_mask(keeps[j]))
            rows[i], rows[j] = around[0].leave(rows[i], attended[0]), around[1].leave(rows[j], attended[1])  # type: ignore[operator]
        return [
            around(row, block)
            for row, block, around in zip(rows, self.feed_forward, self.around_feed_forward, strict=True)
        ]


@model("co-attention", gives=("pooled",), reads=None, several_streams=True)
class CoAttention(Model):
    """Each stream is read by layers of its own; then the streams attend to each other, pair by pair, both ways.

    The means of the streams, side by side, give the answer.

    Paper: Lu et al. 2016 (co-attention); Lu et al. 2019 (with multi-head attention and layers of each stream's own).

    Args:
        own_layers: layers of each stream's own, before any interaction
        layers: layers in which the streams attend to each other
        interaction: false: the same weights attend within each stream, so that streams meet in their means alone
    """

    takes_attention: ClassVar[str] = "the attention of each stream among its own positions"
    attention_default: ClassVar[str] = "multihead"

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        own_layers: int = 1,
        layers: int = 1,
        num_heads: int = 4,
        attention: str | None = None,
        positions: str = "sinusoidal",
        dropout: float = 0.0,
        interaction: bool = True,
    ) -> None:
        super().__init__(problem)
        if len(problem.streams) > 1:
            self.shows = dict(zip(BETWEEN, TOLD, strict=True))  # type: ignore[misc]
            self.sides = dict(zip(BETWEEN, ((1, 0), (0, 1)) if interaction else ((1, 1), (0, 0)), strict=True))
        (_, first), *further = problem.streams.items()
        self.embedding = StreamEmbedding(first, dim, positions=positions, dropout=dropout)
        self.further = nn.ModuleDict(
            {name: StreamEmbedding(spec, dim, positions=positions, dropout=dropout) for name, spec in further}
        )
        chosen = attention or self.attention_default
        self.own = nn.ModuleList(
            Stack(dim, own_layers, chosen, num_heads=num_heads, dropout=dropout, hidden=2 * dim)
            for _ in problem.streams
        )
        self.layers = nn.ModuleList(
            CoAttentionLayer(len(problem.streams), dim, num_heads, dropout, interaction)
            for _ in range(whole_number("layers", layers, 1))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in problem.streams)
        self.join = nn.Linear(len(problem.streams) * dim, dim)
        self.head = problem.answer.head(dim)

    def forward(self, batch: Batch) -> Any:
        streams = list(batch.streams.values())
        embeddings = [self.embedding, *self.further.values()]
        keeps = [stream.keep for stream in streams]
        rows = [
            self_attention(embed(stream.data), mask=padding_mask(stream.keep))
            for embed, self_attention, stream in zip(embeddings, self.own, streams, strict=True)
        ]
        for layer in self.layers:
            rows = layer(rows, keeps)
        means = [pooled(norm(row), keep) for norm, row, keep in zip(self.norms, rows, keeps, strict=True)]
        return self.head(nn.functional.gelu(self.join(torch.cat(means, -1))), batch)
