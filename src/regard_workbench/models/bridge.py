"""`bridge`: an encoder of self-attention modules, an attention layer, and a decoder behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
from regard.decoding import Hypothesis
from regard.errors import unknown_name
from regard.masks import Mask
from regard.nn import positions as encodings
from regard.nn.parts.attention_layer import LayerState
from regard.nn.parts.blocks import mechanism_of
from regard.nn.parts.building import build_across
from regard.nn.parts.heads import head_width, join_heads, split_heads
from regard.nn.parts.state import State
from regard.registry import parse
from regard.support.arguments import whole_number
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.stack import CachedStep, Stack, StackState, write
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

LAYERS = ("global-layer", "local-layer")


class SelfAttentionModule(nn.Module):
    """Self-attention of two linear maps, with the positions added inside the module, and a residual connection.

        [q; k; v] = W₁ (x + p),   head_i = softmax(q_i k_iᵀ / √d) v_i,   y = x + W₂ [head_1; …; head_h]

    The residual carries x without positions, so that each module adds them anew. There is no normalisation.
    """

    def __init__(
        self, dim: int, num_heads: int, positions: nn.Module, *, dropout: float = 0.0, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.head_dim = head_width(dim, whole_number("num_heads", num_heads, 1))
        self.positions = positions
        self.enter = nn.Linear(dim, 3 * dim)
        self.leave = nn.Linear(dim, dim)
        self.dropout, self.attention_dropout = nn.Dropout(dropout), attention_dropout

    def forward(self, rows: Tensor, mask: Mask | None = None) -> Tensor:
        """(b,n,dim) → (b,n,dim)."""
        mapped = self.enter(self.positions(rows)).chunk(3, -1)
        query, key, value = (split_heads(projection, self.head_dim) for projection in mapped)
        dropout = self.attention_dropout if self.training else 0.0
        heads = dispatch.attend(query, key, value, mask=mask, dropout=dropout)
        outputs: Tensor = rows + self.dropout(self.leave(join_heads(heads)))
        return outputs


@dataclass(frozen=True)
class BridgeState(State):
    """The states of the attention layer and of the decoder, the encoder's rows and their padding mask."""

    layer: LayerState
    decoder: StackState
    source: Tensor
    keep: Tensor | None = None


@model("bridge", gives=("decoder",))
class Bridge(Model):
    """Encoder, attention layer, decoder: the layer carries what the encoder has read to the words written so far.

        encoder:  N self-attention modules, y = x + W₂ concat(heads(W₁ (x + p))): two linear maps, positions, a residual
        layer:    the target's rows read their own past (key-value memory), then the encoder's rows (query-key memory)
        decoder:  causal Transformer layers over the rows of the layer, then a projection to the words

    W₁ makes queries, keys and values in one map, W₂ maps the concatenated heads. The decoder attends to the encoder
    through the layer only.

    Paper: Vaswani et al. 2017, sections 3.2 and 3.5 (heads, positions); the layer: see `global-layer`, `local-layer`.

    Args:
        layers: N, how many self-attention modules the encoder has
        layer: global-layer, or local-layer with a sliding window in both halves; options may stand in the name:
            `layer="local-layer(window=9)"`
        positions: the encoding inside each module and of the target's rows: sinusoidal, learned, half-wave or none
    """

    attention_default: ClassVar[str] = "global-layer"  # as `layer`; `--attention` has no place here
    shows: ClassVar[dict[str, str]] = {
        "layer": "{name} between encoder and decoder",
        "encoder.-1": "the last self-attention module of the encoder",
    }

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 3,
        decoder_layers: int | None = None,
        num_heads: int = 4,
        layer: str = "global-layer",
        positions: str = "sinusoidal",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        hidden: int | None = None,
        tied: bool = True,
    ) -> None:
        super().__init__(problem)
        assert isinstance(problem.answer, Writes)
        if parse(layer)[0] not in LAYERS:
            raise unknown_name("layer", parse(layer)[0], LAYERS)
        self.answer = problem.answer
        self.embedding = StreamEmbedding(problem.inputs, dim, positions="none", dropout=dropout)
        self.encoder = nn.ModuleList(
            SelfAttentionModule(
                dim,
                num_heads,
                encodings.build(positions, dim, problem.inputs.length),
                dropout=dropout,
                attention_dropout=attention_dropout,
            )
            for _ in range(whole_number("layers", layers, 1))
        )
        target = self.answer.decoder_stream()
        self.target_embedding = StreamEmbedding(target, dim, positions=positions, dropout=dropout)
        common = {"num_heads": num_heads, "dropout": attention_dropout}
        self.layer = mechanism_of("layer", layer, dim, build_across, common)
        self.decoder = Stack(
            dim,
            layers if decoder_layers is None else decoder_layers,
            "multihead",
            causal=True,
            num_heads=num_heads,
            dropout=dropout,
            attention_dropout=attention_dropout,
            hidden=hidden,
        )
        self.head = self.answer.head(dim, self.target_embedding.shared(self.answer.count) if tied else None)

    def read(self, batch: Batch) -> Tensor:
        """The encoder's rows (b,n,dim)."""
        rows: Tensor = self.embedding(batch.inputs)
        for module in self.encoder:
            rows = module(rows, padding_mask(batch.keep))
        return rows

    def forward(self, batch: Batch) -> Any:
        rows = self.target_embedding(self.answer.decoder_inputs(batch))
        # Target padding needs no mask: it lies behind the end, where causal attention of real positions never looks.
        rows = self.decoder(self.layer(rows, self.read(batch), mask=padding_mask(batch.keep)))
        return self.head(rows, batch)

    def step(self, tokens: Tensor, state: BridgeState) -> tuple[Tensor, BridgeState]:
        """Logits for the next target tokens, and the new state."""
        rows = self.target_embedding(tokens, offset=state.decoder.passed)
        rows, layer = self.layer(rows, state.source, mask=padding_mask(state.keep), state=state.layer)
        rows, decoder = self.decoder.step(rows, state.decoder)
        return self.head(rows, Batch.of(tokens)), BridgeState(layer, decoder, state.source, state.keep)

    def initial_state(self, batch: Batch) -> BridgeState:
        """The initial decoding state; the source is encoded once."""
        source = self.read(batch)
        where = (batch.size, source.device, source.dtype)
        layer = self.layer.initial_state(*where)
        assert isinstance(layer, LayerState)
        return BridgeState(layer, self.decoder.initial_state(*where), source, batch.keep)

    @torch.no_grad()
    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each source, best first. Options: see `write`."""
        start = batch.inputs.new_full((batch.size, 1), self.answer.start, dtype=torch.long)
        options.setdefault("max_length", self.answer.length)
        return write(CachedStep(self.step, self.initial_state(batch)), start, end=self.answer.end, **options)
