"""`gla`: encoder and decoder, or a decoder alone, built on global-query attention, which is linear in the length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.nn.parts.state import State
from regard.support.arguments import whole_number
from regard_workbench.models.decoder import prompted
from regard_workbench.models.parts.embedding import padding_mask
from regard_workbench.models.parts.model import model
from regard_workbench.models.parts.preset import Preset
from regard_workbench.models.parts.rate import LowerRate
from regard_workbench.models.parts.stack import Stack
from regard_workbench.models.transformer import Transformer
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

FORMS = ("decoder", "encoder-decoder")


@dataclass(frozen=True)
class PrefixState(State):
    """The tokens so far, (b,n): each step of the encoder-decoder form of a language model reads all of them again."""

    tokens: Tensor


@model("gla", gives=("decoder", "past"))
class GLA(Transformer):
    """`transformer` with `global-query` in encoder, decoder and between them; queries and keys are projected.

    A position is mixed with the mean of all (in the decoder: of those before it) by one weight; the decoder reads the
    encoder by the encoder-decoder form, y_t = Σ_s softmax_s(q_t·k_s) z_s.

    As a language model it is a decoder alone or, with form="encoder-decoder", a causal encoder and a decoder that read
    the same text: position t attends to what the encoder made of the positions up to t.

    With upsample=r the encoder runs over groups of r positions, and its rows are brought back to the rate of the input
    before the decoder attends to them. In a language model a group can be seen from its last position on.
    """

    attention_default: ClassVar[str] = "global-query(project=query-key)"
    cross_default: ClassVar[str] = "global-query(project=query-key)"
    presets: ClassVar[Mapping[str, Preset]] = {}

    def __init__(self, problem: Problem, *, form: str | None = None, upsample: int = 1, **options: Any) -> None:
        past = problem.answer.needs == "past"
        self.form = ("decoder" if past else "encoder-decoder") if form is None else form
        if self.form not in FORMS or (self.form == "decoder" and not past):
            expected = " or ".join(map(repr, FORMS if past else FORMS[1:]))
            raise BadValue(f"form: expected {expected} for {problem.answer.words}, got {form!r}.")
        self.upsample = whole_number("upsample", upsample, 1)
        if self.form == "decoder" and self.upsample > 1:
            raise BadValue(
                f"upsample: a decoder alone has no encoder to run at a lower rate, got upsample={upsample}. "
                f"Try form=encoder-decoder."
            )
        self.language = past
        super().__init__(problem, **options)

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
        both = self.form == "encoder-decoder"
        if not self.language:
            super().add_stacks(dim, layers, attention, cross, shared, around, tied)
        else:
            across: dict[str, Any] = {"cross": cross, "cross_causal": True} if both else {}
            if both:
                self.encoder = Stack(dim, layers[0], attention, causal=True, **shared)
            self.decoder = Stack(dim, layers[1], attention, causal=True, **across, **shared)
            answer = self.problem.answer
            self.head = answer.head(dim, self.embedding.shared(answer.outputs) if tied else None)
        if not both:
            self.shows = {"decoder.layers.-1.attention": "{name} of the last layer"}  # type: ignore[misc]
        self.rate = LowerRate(dim, self.upsample) if self.upsample > 1 else None

    def read(self, batch: Batch) -> Tensor:
        """The encoder's rows (b,n,dim)."""
        return self._encoded(self.embedding(batch.inputs), batch.keep)

    def before_decoder(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        """The rows that the decoder reads, and what they may attend to: its `mask`, `source` and `source_mask`."""
        if not self.language:
            return super().before_decoder(batch)
        rows, keep = self.embedding(batch.inputs), batch.keep
        if self.form == "decoder":
            return rows, {"mask": padding_mask(keep)}
        # A group is known after its last position, so its rows move right by the positions that it waits for.
        late = self.upsample - 1
        source = pad(self._encoded(rows, keep), (0, 0, late, 0))[:, : rows.shape[1]]
        source_keep = keep
        if late:
            source_keep = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[:2]) >= late
            source_keep = source_keep if keep is None else source_keep & keep
        return rows, {"mask": padding_mask(keep), "source": source, "source_mask": padding_mask(source_keep)}

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits for the next tokens, and the new state."""
        if not self.language:
            return super().step(tokens, state)
        if isinstance(state, PrefixState):
            prefix = torch.cat([state.tokens, tokens], 1)
            return self(Batch.of(prefix))[:, state.tokens.shape[1] :], PrefixState(prefix)
        rows, after = self.decoder.step(self.embedding(tokens, offset=state.passed), state)
        return self.head(rows, Batch.of(tokens)), after

    def initial_state(self, batch: Any) -> Any:
        """The initial decoding state, for a batch of sources; of a language model, for a number of texts."""
        if not self.language:
            return super().initial_state(batch)
        weight = next(self.head.parameters())
        if self.form == "encoder-decoder":
            return PrefixState(torch.zeros(batch, 0, dtype=torch.long, device=weight.device))
        return self.decoder.initial_state(batch, weight.device, weight.dtype)

    @torch.no_grad()
    def generate(self, batch: Batch, *, cached: bool = True, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each source, or continuations of the inputs, best first. Options: see `write`."""
        if not self.language:
            return super().generate(batch, cached=cached, **options)
        return prompted(self, batch, cached, **options)

    def _encoded(self, rows: Tensor, keep: Tensor | None) -> Tensor:
        """The encoder's rows for embedded inputs (b,n,dim), at their rate."""
        if self.rate is None:
            encoded: Tensor = self.encoder(rows, mask=padding_mask(keep))
            return encoded
        lower, real = self.rate.lowered(rows, keep)
        return self.rate.raised(self.encoder(lower, mask=padding_mask(real)), rows.shape[1])
