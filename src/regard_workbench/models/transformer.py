"""`transformer`: an encoder, and a decoder with cross-attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.formula.formula import widened
from regard.masks import Mask
from regard.nn.parts.state import State
from regard.support.arguments import finite_number
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.preset import Preset, inverse_root_peak
from regard_workbench.models.parts.stack import CachedStep, Stack, StackState, write
from regard_workbench.tasks.answers import Decoded, Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

# Vaswani et al. 2017: sections 3 and 5.3 to 5.4, and the row "base" of table 3.
VASWANI = Preset(
    {
        "dim": 512,
        "layers": 6,
        "num_heads": 8,
        "hidden": 2048,
        "norm": "post",
        "activation": "relu",
        "attention": "multihead(bias=False)",
        "cross": "multihead(bias=False)",
        "positions": "sinusoidal",
        "dropout": 0.1,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tied": True,
    },
    {
        "optimizer": "adamw",
        "weight_decay": 0.0,
        "warmup": 4000,
        "schedule": "inverse-root",
        "smoothing": 0.1,
        "clip": 0.0,
    },
    inverse_root_peak,
)


@dataclass(frozen=True)
class WritingState(State):
    """The decoder's state, the encoder's rows and their padding mask."""

    stack: StackState
    source: Tensor
    keep: Tensor | None = None


@model("transformer", gives=("decoder", "steps"))
class Transformer(Model):
    """Encoder and decoder, six layers each by default; the decoder attends to itself and to the encoder's rows.

    Paper: Vaswani et al. 2017, section 3 (here with normalisation before each part by default).

    preset=vaswani is the base model of the paper: 6+6 layers of width 512 with 8 heads and feed-forward blocks of width
    2048, normalisation after each part, ReLU, sinusoidal positions, projections without bias, dropout 0.1 on what each
    part adds and on the embeddings only. `regard train` then takes Adam with β 0.9 and 0.98 and without weight decay,
    label smoothing 0.1, no clipping, and the learning rate dim^−½ · min(step^−½, step · warmup^−3/2) with a warm-up of
    4,000 steps. Three things differ: the source has its own embedding, because a task may have two vocabularies; the
    output has a bias; Adam's ε is 1e-8 instead of 1e-9.
    """

    takes_attention: ClassVar[str] = "the attention of encoder and decoder among their own positions"
    attention_default: ClassVar[str] = "multihead"
    cross_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {
        "decoder.layers.-1.cross": "the last decoder layer's attention to the encoder",
        "encoder.layers.-1.attention": "{name} of the last encoder layer",
    }
    presets: ClassVar[Mapping[str, Preset]] = {"vaswani": VASWANI}

    answer: Decoded

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
        tied: bool = True,
        tied_source: bool = False,
        head_bias: bool = True,
        head_scale: float = 1.0,
    ) -> None:
        super().__init__(problem)
        around: dict[str, Any] = {
            "positions": positions,
            "dropout": dropout,
            "word_dropout": word_dropout,
            "scaled": scaled_embedding,
        }
        shared: dict[str, Any] = {
            "num_heads": num_heads,
            "norm": norm,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "hidden_dropout": hidden_dropout,
            "residual": residual,
            "activation": activation,
            "hidden": hidden,
            "gated": gated,
            "norm_type": norm_type,
            "norm_eps": norm_eps,
            "feed_forward_bias": feed_forward_bias,
            "shared_positions": shared_positions,
        }
        self.embedding = StreamEmbedding(problem.inputs, dim, **around)
        self.add_stacks(
            dim,
            (layers, decoder_layers or layers),
            attention or self.attention_default,
            cross or self.cross_default,
            shared,
            around,
            tied,
        )
        if tied_source:
            self._tie_source()
        if not head_bias:
            self.head.drop_bias()
        self.head.row_scale = finite_number("head_scale", head_scale)

    def _tie_source(self) -> None:
        """Embed source and target with the same weights (Vaswani et al. 2017, section 3.4)."""
        target = getattr(self, "target_embedding", None)
        if target is None or self.embedding.shared(self.answer.outputs) is None:
            raise BadValue(
                "tied_source: source and target need one vocabulary. Leave it out, or take a task that has one: "
                "translate with joint=true."
            )
        self.embedding.rows = target.rows

    def add_stacks(
        self,
        dim: int,
        layers: tuple[int, int],
        attention: str,
        cross: str,
        shared: dict[str, Any],
        around: dict[str, Any],
        tied: bool,
    ) -> None:
        """Create encoder, decoder and head. `shared`: options of both stacks; `around`: those of an embedding."""
        assert isinstance(self.problem.answer, Decoded)
        self.answer = self.problem.answer
        self.encoder = Stack(dim, layers[0], attention, **shared)
        self.target_embedding = StreamEmbedding(self.answer.decoder_stream(), dim, **around)
        self.decoder = Stack(dim, layers[1], attention, cross=cross, causal=True, **shared)
        self.head = self.answer.head(dim, self.target_embedding.shared(self.answer.outputs) if tied else None)

    def read(self, batch: Batch) -> Tensor:
        """The encoder's rows (b,n,dim)."""
        encoded: Tensor = self.encoder(self.embedding(batch.inputs), mask=padding_mask(batch.keep))
        return encoded

    def forward(self, batch: Batch) -> Any:
        rows, around = self.before_decoder(batch)
        return self.head(self.decoder(rows, **around), batch)

    def before_decoder(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """The rows that the decoder reads, and what they may attend to: its `mask`, `source` and `source_mask`."""
        rows = self.target_embedding(self.answer.decoder_inputs(batch))
        # Target padding needs no mask: it lies behind the end, where causal attention of real positions never looks.
        return rows, {"source": self.read(batch), "source_mask": padding_mask(batch.keep)}

    def step(self, tokens: Tensor, state: WritingState) -> tuple[Tensor, WritingState]:
        """Logits for the next target tokens, and the new state."""
        mask: Mask | None = padding_mask(state.keep)
        rows = self.target_embedding(tokens, offset=state.stack.passed)
        rows, after = self.decoder.step(rows, state.stack, source=state.source, source_mask=mask)
        return self.head(rows, Batch.of(tokens)), WritingState(after, state.source, state.keep)

    def initial_state(self, batch: Batch) -> WritingState:
        """The initial decoding state; the source is encoded once."""
        source = self.read(batch)
        return WritingState(self.decoder.initial_state(batch.size, source.device, source.dtype), source, batch.keep)

    @torch.no_grad()
    def generate(self, batch: Batch, *, cached: bool = True, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each source, best first. Options: see `write`."""
        answer = self.answer
        if not isinstance(answer, Writes):
            return super().generate(batch, **options)  # which raises
        start = batch.inputs.new_full((batch.size, 1), answer.start, dtype=torch.long)
        options.setdefault("max_length", answer.length)
        state = self.initial_state(batch)
        step: Any = CachedStep(self.step, state) if cached else Rewriting(self, state)
        return write(step, start, end=answer.end, **options)


class Rewriting:
    """A decoding step without a cache: every prefix is decoded again. For tests and for measuring the cache."""

    def __init__(self, owner: Transformer, state: WritingState) -> None:
        self.owner, self.state = owner, state

    def __call__(self, prefixes: Tensor) -> Tensor:
        logits, _ = self.owner.step(prefixes, self.state)
        return widened(logits[:, -1]).log_softmax(-1)

    def reorder(self, index: Tensor) -> None:
        """Row i continues from the state of row index[i]."""
        self.state = self.state.reorder(index)
