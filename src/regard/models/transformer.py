"""`transformer`: an encoder, and a decoder with cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.decoding import Hypothesis
from regard.masks import Mask
from regard.models.embedding import StreamEmbedding, padding_mask, shifted
from regard.models.model import Model, model
from regard.models.stack import CachedStep, Stack, StackState, write
from regard.nn.state import State
from regard.tasks.answers import Writes
from regard.tasks.batch import Batch
from regard.tasks.problem import Problem
from regard.tasks.streams import Tokens


@dataclass(frozen=True)
class WritingState(State):
    """The decoder's state, the encoder's rows and their padding mask."""

    stack: StackState
    source: Tensor
    keep: Tensor | None = None


@model("transformer", gives=("decoder",))
class Transformer(Model):
    """Encoder and decoder, six layers each by default; the decoder attends to itself and to the encoder's rows.

    Paper: Vaswani et al. 2017, section 3 (here with normalisation before each part by default).
    """

    takes_attention: ClassVar[str] = "the attention of encoder and decoder among their own positions"
    attention_default: ClassVar[str] = "multihead"
    cross_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {
        "decoder.layers.-1.cross": "the last decoder layer's attention to the encoder",
        "encoder.layers.-1.attention": "{name} of the last encoder layer",
    }

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 6,
        decoder_layers: int | None = None,
        num_heads: int = 4,
        attention: str | None = None,
        cross: str | None = None,
        positions: str = "sinusoidal",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        norm: str = "pre",
        hidden: int | None = None,
        gated: bool = False,
        tied: bool = True,
    ) -> None:
        super().__init__(problem)
        chosen = attention or self.attention_default
        shared: dict[str, Any] = {
            "num_heads": num_heads, "norm": norm, "dropout": dropout, "attention_dropout": attention_dropout,
            "hidden": hidden, "gated": gated,
        }  # fmt: skip
        assert isinstance(problem.answer, Writes)
        self.answer = problem.answer
        self.embedding = StreamEmbedding(problem.inputs, dim, positions=positions, dropout=dropout)
        self.encoder = Stack(dim, layers, chosen, **shared)
        target = Tokens(self.answer.count, length=self.answer.length + 1)
        self.target_embedding = StreamEmbedding(target, dim, positions=positions, dropout=dropout)
        self.decoder = Stack(
            dim, decoder_layers or layers, chosen, cross=cross or self.cross_default, causal=True, **shared
        )
        self.head = self.answer.head(dim, self.target_embedding.shared(self.answer.count) if tied else None)

    def read(self, batch: Batch) -> Tensor:
        """The encoder's rows (b,n,dim)."""
        found: Tensor = self.encoder(self.embedding(batch.inputs), mask=padding_mask(batch.keep))
        return found

    def forward(self, batch: Batch) -> Any:
        assert batch.targets is not None
        rows = self.target_embedding(shifted(batch.targets, self.answer.start))
        # Target padding needs no mask: it lies behind the end, where causal attention of real positions never looks.
        rows = self.decoder(rows, source=self.read(batch), source_mask=padding_mask(batch.keep))
        return self.head(rows, batch)

    def step(self, tokens: Tensor, state: WritingState) -> tuple[Tensor, WritingState]:
        """Logits for the next target tokens, and the new state."""
        mask: Mask | None = padding_mask(state.keep)
        rows = self.target_embedding(tokens, offset=state.stack.passed)
        rows, after = self.decoder.step(rows, state.stack, source=state.source, source_mask=mask)
        return self.head(rows, Batch.of(tokens)), WritingState(after, state.source, state.keep)

    def initial_state(self, batch: Batch) -> WritingState:
        """The initial decoding state; the source is encoded once."""
        source = self.read(batch)
        return WritingState(
            self.decoder.initial_state(batch.size, source.device, source.dtype), source, batch.keep
        )

    @torch.no_grad()
    def generate(self, batch: Batch, *, cached: bool = True, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each source, best first. Options: see `write`."""
        start = batch.inputs.new_full((batch.size, 1), self.answer.start, dtype=torch.long)
        options.setdefault("max_length", self.answer.length)
        state = self.initial_state(batch)
        step: Any = CachedStep(self.step, state) if cached else Rewriting(self, state)
        return write(step, start, end=self.answer.end, **options)


class Rewriting:
    """A decoding step without a cache: every prefix is decoded again. For tests and for measuring the cache."""

    def __init__(self, owner: Transformer, state: WritingState) -> None:
        self.owner, self.state = owner, state

    def __call__(self, prefixes: Tensor) -> Tensor:
        logits, _ = self.owner.step(prefixes, self.state)
        return logits[:, -1].float().log_softmax(-1)

    def reorder(self, index: Tensor) -> None:
        """Row i continues from the state of row index[i]."""
        self.state = self.state.reorder(index)
