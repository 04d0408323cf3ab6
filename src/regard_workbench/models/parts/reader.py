"""The base of `encoder` and `decoder`: stream embeddings, one stack of layers, a head."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.masks import Mask
from regard_workbench.models.parts.embedding import StreamEmbedding, joined_keep, pooled, stream_mask
from regard_workbench.models.parts.model import Model
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem


class Reader(Model):
    """Embeds all streams and runs one stack of layers over their concatenated rows. A base class."""

    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {"stack.layers.-1.attention": "{name} of the last layer"}
    causal: bool = False  # whether layers are causal

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 2,
        num_heads: int = 4,
        attention: str | None = None,
        positions: str = "sinusoidal",
        dropout: float = 0.1,
        word_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        hidden_dropout: float | None = None,
        norm: str = "pre",
        norm_type: str = "layer",
        norm_eps: float | None = None,
        residual: bool = True,
        activation: str = "gelu",
        hidden: int | None = None,
        gated: bool = False,
        feed_forward_bias: bool = True,
        shared_positions: bool = False,
        scaled_embedding: bool = True,
        embedding_norm: str = "none",
        segments: int = 0,
        tied: bool = False,
        head_bias: bool = True,
    ) -> None:
        super().__init__(problem)
        around: dict[str, Any] = {
            "positions": positions,
            "dropout": dropout,
            "word_dropout": word_dropout,
            "scaled": scaled_embedding,
            "norm": embedding_norm,
            "norm_eps": norm_eps,
        }
        self.embedding = StreamEmbedding(problem.inputs, dim, segments=segments, **around)
        self.stack = Stack(
            dim,
            layers,
            attention or self.attention_default,
            causal=self.causal,
            num_heads=num_heads,
            norm=norm,
            norm_type=norm_type,
            norm_eps=norm_eps,
            residual=residual,
            activation=activation,
            dropout=dropout,
            hidden_dropout=hidden_dropout,
            attention_dropout=attention_dropout,
            hidden=hidden,
            gated=gated,
            feed_forward_bias=feed_forward_bias,
            shared_positions=shared_positions,
        )
        self.head = problem.answer.head(dim, self.embedding.shared(problem.answer.outputs) if tied else None)
        if not head_bias:
            self.head.drop_bias()
        further = list(problem.streams.items())[1:]
        self.further = nn.ModuleDict({name: StreamEmbedding(spec, dim, **around) for name, spec in further})
        if further:  # which stream a row comes from
            self.origin = nn.Parameter(torch.randn(len(problem.streams), dim) * dim**-0.5)

    def rows(self, batch: Batch) -> Tensor:
        """The output rows of the layers, (b,n,dim), for all streams concatenated."""
        rows, mask = self.embedded(batch)
        outputs: Tensor = self.stack(rows, mask=mask)
        return outputs

    def answer(self, batch: Batch) -> Any:
        """The outputs of the head for the rows of the first stream."""
        rows = self.rows(batch)
        return self.head(rows[:, : batch.inputs.shape[1]] if self.further else rows, batch)

    def pooled_answer(self, batch: Batch) -> Any:
        """The outputs of the head for the mean row of each example."""
        return self.head(pooled(self.rows(batch), joined_keep(batch.streams.values())), batch)

    def embedded(self, batch: Batch) -> tuple[Tensor, Mask | None]:
        """What the layers read: rows (b,n,dim) of all streams concatenated, and where they are real."""
        rows = self.embedding(batch.inputs)
        if self.further:
            more = [embed(batch.streams[name].data) for name, embed in self.further.items()]
            rows = torch.cat(
                [stream_rows + origin for stream_rows, origin in zip([rows, *more], self.origin, strict=True)], 1
            )
        return rows, stream_mask(batch.streams.values())
