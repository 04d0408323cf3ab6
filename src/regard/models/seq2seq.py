"""`seq2seq`: a recurrent encoder and decoder with attention between them, as it was before Transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.core.arguments import whole_number
from regard.decoding import Hypothesis
from regard.models.embedding import StreamEmbedding, padding_mask, shifted
from regard.models.model import Model, model
from regard.models.recurrent import Joined, Recurrent, RecurrentState
from regard.models.stack import CachedStep, write
from regard.nn.blocks import mechanism_of
from regard.nn.building import build_across
from regard.nn.state import State
from regard.tasks.answers import Writes
from regard.tasks.batch import Batch
from regard.tasks.problem import Problem
from regard.tasks.streams import Tokens


@dataclass(frozen=True)
class Seq2seqState(State):
    """The decoder's recurrent state, the state of each attention, the encoder's rows and their padding mask."""

    recurrent: RecurrentState
    attentions: tuple[State, ...]
    source: Tensor
    keep: Tensor | None = None


@model("seq2seq", gives=("decoder",))
class Seq2seq(Model):
    """A bidirectional recurrent encoder; a recurrent decoder whose rows attend to the encoder's rows.

    Paper: Bahdanau et al. 2014 (attention between encoder and decoder); Luong et al. 2015, section 3 (the attended row
    joins the decoder's row after the recurrence). `attention_layers` puts several attentions, one after the other,
    between the two; `alignments` returns the weights of the last one.
    """

    takes_attention: ClassVar[str] = "the attention of the decoder to the encoder"
    attention_default: ClassVar[str] = "additive"
    shows: ClassVar[dict[str, str]] = {"attentions.-1": "the decoder's attention to the encoder"}

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 1,
        cell: str = "gru",
        attention: str | None = None,
        attention_layers: int = 1,
        num_heads: int = 1,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__(problem)
        assert isinstance(problem.answer, Writes)
        self.answer = problem.answer
        self.embedding = StreamEmbedding(problem.inputs, dim, positions="none", dropout=dropout)
        self.encoder = Recurrent(dim, layers, cell, both=True, dropout=dropout)
        target = Tokens(self.answer.count)
        self.target_embedding = StreamEmbedding(target, dim, positions="none", dropout=dropout)
        self.decoder = Recurrent(dim, layers, cell, dropout=dropout)
        self.begin = nn.Linear(dim, layers * dim)
        count = whole_number("attention_layers", attention_layers, 1)
        chosen, common = attention or self.attention_default, {"num_heads": num_heads}
        self.attentions = nn.ModuleList(
            mechanism_of("attention", chosen, dim, build_across, common) for _ in range(count)
        )
        self.joins = nn.ModuleList(Joined(dim, dropout) for _ in range(count))
        self.head = self.answer.head(dim, self.target_embedding.shared(self.answer.count) if tied else None)

    def read(self, batch: Batch) -> tuple[Tensor, RecurrentState]:
        """The encoder's rows (b,n,dim) and the decoder's initial state."""
        rows, _ = self.encoder(self.embedding(batch.inputs), batch.keep)
        kept = rows if batch.keep is None else rows.masked_fill(~batch.keep[..., None], 0)
        count = max(1, rows.shape[1]) if batch.keep is None else batch.keep.sum(1, keepdim=True).clamp(min=1)
        mean = kept.sum(1) / count
        hidden = torch.tanh(self.begin(mean)).unflatten(-1, (self.decoder.cells.num_layers, -1))
        cell = torch.zeros_like(hidden) if isinstance(self.decoder.cells, nn.LSTM) else None
        return rows, RecurrentState(hidden, cell)

    def forward(self, batch: Batch) -> Any:
        rows, source = self._written(batch)
        mask = padding_mask(batch.keep)
        for attention, join in zip(self.attentions, self.joins, strict=True):
            rows = join(attention(rows, source, mask=mask), rows)
        return self.head(rows, batch)

    def alignments(self, batch: Batch) -> Tensor:
        """How much each target position attends to each source position, (b,t,n), mean over heads of the last layer."""
        rows, source = self._written(batch)
        mask = padding_mask(batch.keep)
        for attention, join in zip(self.attentions[:-1], self.joins, strict=False):
            rows = join(attention(rows, source, mask=mask), rows)
        found: Tensor = self.attentions[-1].weights(rows, source, mask=mask).mean(1)  # type: ignore[operator]
        return found

    def step(self, tokens: Tensor, state: Seq2seqState) -> tuple[Tensor, Seq2seqState]:
        """Logits for the next target tokens, and the new state."""
        rows, recurrent = self.decoder(self.target_embedding(tokens), state=state.recurrent)
        mask, after = padding_mask(state.keep), []
        for attention, join, before in zip(self.attentions, self.joins, state.attentions, strict=True):
            context, following = attention(rows, state.source, mask=mask, state=before)
            rows = join(context, rows)
            after.append(following)
        return self.head(rows, Batch.of(tokens)), replace(state, recurrent=recurrent, attentions=tuple(after))

    def initial_state(self, batch: Batch) -> Seq2seqState:
        """The initial decoding state; the source is encoded once."""
        source, recurrent = self.read(batch)
        states = [layer.initial_state(batch.size, source.device, source.dtype) for layer in self.attentions]  # type: ignore[operator]
        return Seq2seqState(recurrent, tuple(states), source, batch.keep)

    @torch.no_grad()
    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each source, best first. Options: see `write`."""
        start = batch.inputs.new_full((batch.size, 1), self.answer.start, dtype=torch.long)
        options.setdefault("max_length", self.answer.length)
        return write(CachedStep(self.step, self.initial_state(batch)), start, end=self.answer.end, **options)

    def _written(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The decoder's rows for the batch's targets, before attention, and the source's rows."""
        assert batch.targets is not None
        source, state = self.read(batch)
        rows, _ = self.decoder(self.target_embedding(shifted(batch.targets, self.answer.start)), state=state)
        return rows, source
