"""`agent`: a policy that remembers what it saw, by attention over its past or in other ways."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue, unknown_name
from regard.nn import positions as encodings
from regard.nn.parts.state import State
from regard.support.arguments import whole_number
from regard.support.tracing import exporting
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.recurrent import Recurrent, RecurrentState
from regard_workbench.models.parts.stack import Stack, StackState
from regard_workbench.models.parts.standardize import Standardize
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Vectors

MEMORIES = ("attention", "lstm", "slots", "none")


@model("agent", gives=("past",), reads=(Vectors,))
class Agent(Model):
    """A row for each step, from what is seen there and what the memory holds of the steps before.

        x_t = tanh(W_2 tanh(W_1 seen_t)),     h_t = memory(x_t; x_0 … x_{t−1})

    What is seen is standardised by its mean and spread over the rollouts so far.
    memory=attention: causal attention layers over all steps so far, whose keys and values are kept; acting costs one
    row for each step. slots: the layers of dynamic-memory, which hold the past in a few slots. lstm: a recurrent
    network. none: only the present step, to measure what memory is worth.

    Paper: Parisotto et al. 2020 (attention as the memory of a policy); Hausknecht and Stone 2015 (LSTM).

    Args:
        memory: attention, slots, lstm or none
        layers: how many layers of it
        context: how many steps it attends to, its own included; all of them by default
    """

    takes_attention: ClassVar[str] = "the attention to earlier steps (memory=attention)"
    attention_default: ClassVar[str] = "causal"

    def __init__(
        self,
        problem: Problem,
        *,
        memory: str = "attention",
        dim: int = 64,
        layers: int = 1,
        num_heads: int = 4,
        attention: str | None = None,
        context: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(problem)
        if memory not in MEMORIES:
            raise unknown_name("memory", memory, MEMORIES)
        if memory != "attention" and (attention, context) != (None, None):
            raise BadValue(
                f"attention, context: agent(memory={memory}) does not attend to earlier steps. Leave them out."
            )
        if attention is not None and context is not None:
            raise BadValue(f"context: write it into the attention, as in attention=causal(window={context}).")
        spec = problem.inputs
        assert isinstance(spec, Vectors)
        self.width, self.standardize = dim, Standardize(spec.width)
        self.see = nn.Sequential(nn.Linear(spec.width, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh())
        for layer in self.see:
            if isinstance(layer, nn.Linear):  # else one-hot codes would be small beside the positions
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
        self.positions = encodings.build("sinusoidal" if memory == "attention" else "none", dim, spec.length)
        self.memory: Stack | Recurrent | None = None
        if memory == "lstm":
            self.memory = Recurrent(dim, layers, "lstm", dropout=dropout)
        elif memory != "none":
            kind = {"slots": "dynamic-memory(slots=8, segment=4)"}.get(memory) or attention or self.attention_default
            if context is not None:
                kind = f"causal(window={whole_number('context', context, 1)})"
            self.memory = Stack(dim, layers, kind, causal=True, num_heads=num_heads, dropout=dropout)
        self.head = problem.answer.head(dim)

    def forward(self, batch: Batch) -> Any:
        """Padding must stand on the right: no memory looks ahead, so that no mask has to hide it."""
        keep = batch.keep
        rows = self.positions(self._embedded(batch.inputs, keep))
        if isinstance(self.memory, Stack):
            rows = self.memory(rows)
        elif self.memory is not None:
            rows, _ = self.memory(rows, keep)
        return self.head(rows, batch)

    def _embedded(self, seen: Tensor, keep: Tensor | None = None) -> Tensor:
        seen = seen.to(self.standardize.mean.dtype)
        if keep is None or seen.device.type != "cpu" or torch.compiler.is_compiling() or exporting():
            rows: Tensor = self.see(self.standardize(seen))
            return rows if keep is None else rows.masked_fill(~keep[..., None], 0)
        # Episodes differ so much in length that most rows of a batch may be padding.
        rows = self.see(self.standardize(seen[keep]))
        return rows.new_zeros(*seen.shape[:2], self.width).index_put((keep,), rows)

    def step(self, seen: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Outputs (b,n,outputs) for the next steps, and the new state."""
        passed = state.passed if isinstance(state, StackState) else 0
        rows = self.positions(self._embedded(seen), passed)
        if isinstance(self.memory, Stack):
            rows, state = self.memory.step(rows, state)
        elif self.memory is not None:
            rows, state = self.memory(rows, None, state)
        return self.head(rows, Batch.of(seen)), state

    def initial_state(self, batch: int) -> StackState | RecurrentState | State:
        """What is known before the first step."""
        weight = next(self.see.parameters())
        if isinstance(self.memory, Stack):
            return self.memory.initial_state(batch, weight.device, weight.dtype)
        if self.memory is not None:
            return self.memory.initial_state(torch.empty(batch, 0, weight.shape[0]).to(weight))
        return State()
