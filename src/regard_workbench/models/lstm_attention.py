"""`lstm-attention`: an LSTM with attention over its hidden rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.decoding import Hypothesis
from regard.nn.parts.blocks import mechanism_of
from regard.nn.parts.building import build, build_across, build_causal
from regard.nn.parts.mechanism import Mechanism
from regard.nn.parts.state import State
from regard_workbench.models.decoder import prompted
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.recurrent import Joined, Recurrent, RecurrentState
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem


@dataclass(frozen=True)
class LSTMState(State):
    """The recurrent state and that of the attention."""

    recurrent: RecurrentState
    attention: State


@model("lstm-attention", gives=("pooled", "past", "rows"))
class LSTMAttention(Model):
    """An LSTM reads; attention looks back over its rows.

    For `classify` problems it reads in both directions and the mean row asks once, over all rows (Lin et al. 2017; Yang
    et al. 2016); for `masked` ones it reads in both directions and each row attends to all. Otherwise it reads forwards
    and each row attends to those before it (Cheng et al. 2016).
    """

    takes_attention: ClassVar[str] = "the attention over the LSTM's rows"
    attention_default: ClassVar[str] = "additive"
    shows: ClassVar[dict[str, str]] = {"attention": "{name} over the LSTM's rows"}

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 1,
        cell: str = "lstm",
        attention: str | None = None,
        num_heads: int = 1,
        dropout: float = 0.1,
        word_dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__(problem)
        needs = problem.answer.needs
        both = needs in ("pooled", "rows")
        self.embedding = StreamEmbedding(
            problem.inputs, dim, positions="none", dropout=dropout, word_dropout=word_dropout
        )
        self.recurrent = Recurrent(dim, layers, cell, both=both, dropout=dropout)
        # The pooled query is placed before the keys: behind them, its position would depend on padding.
        make = {"pooled": build_across, "rows": build}.get(needs, build_causal)
        chosen, common = attention or self.attention_default, {"num_heads": num_heads}
        self.attention: Mechanism = mechanism_of("attention", chosen, dim, make, common)
        self.join = Joined(dim, dropout)
        self.head = problem.answer.head(dim, self.embedding.shared(problem.answer.outputs) if tied else None)

    def forward(self, batch: Batch) -> Any:
        rows, _ = self.recurrent(self.embedding(batch.inputs), batch.keep)
        mask = padding_mask(batch.keep)
        if self.problem.answer.needs == "pooled":
            count = max(1, rows.shape[1]) if batch.keep is None else batch.keep.sum(1, keepdim=True).clamp(min=1)
            question = rows.sum(1) / count  # padding is zero
            outputs = self.join(self.attention(question[:, None], rows, mask=mask)[:, 0], question)
        else:
            outputs = self.join(self.attention(rows, mask=mask), rows)
        return self.head(outputs, batch)

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Logits for the next tokens, and the new state."""
        rows, recurrent = self.recurrent(self.embedding(tokens), state=state.recurrent)
        context, attention = self.attention(rows, state=state.attention)
        return self.head(self.join(context, rows), Batch.of(tokens)), LSTMState(recurrent, attention)

    def initial_state(self, batch: int) -> LSTMState:
        """The initial state."""
        weight = self.join.map.weight
        rows = weight.new_zeros(batch, 0, len(weight))
        return LSTMState(
            self.recurrent.initial_state(rows), self.attention.initial_state(batch, weight.device, weight.dtype)
        )

    @torch.no_grad()
    def generate(self, batch: Batch, *, cached: bool = True, **options: Any) -> list[list[Hypothesis]]:
        """Continuations of the inputs, prompts not included. Options: see `write`."""
        return prompted(self, batch, cached, **options)
