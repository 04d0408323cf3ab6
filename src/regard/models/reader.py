"""What `encoder` and `decoder` are made of: an entrance, one stack of layers, an exit."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regard.models.ends import Entrance, Exit, padding_mask
from regard.models.model import Model
from regard.models.stack import Stack
from regard.tasks.problem import Batch, Problem, Tokens


class Reader(Model):
    """Reads one sequence. The base of models; not one itself."""

    attention_default: ClassVar[str] = "multihead"
    causal: ClassVar[bool] = False  # whether a layer may not look ahead

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
        attention_dropout: float = 0.0,
        norm: str = "pre",
        hidden: int | None = None,
        gated: bool = False,
        tied: bool = False,
    ) -> None:
        super().__init__(problem)
        self.entrance = Entrance(
            problem.inputs, dim, positions=positions, max_length=problem.max_length, dropout=dropout
        )
        self.stack = Stack(
            dim, layers, attention or self.attention_default, causal=self.causal, num_heads=num_heads, norm=norm,
            dropout=dropout, attention_dropout=attention_dropout, hidden=hidden, gated=gated,
        )  # fmt: skip
        same = isinstance(problem.inputs, Tokens) and problem.inputs.count == problem.outputs
        self.exit = Exit(dim, problem.outputs, self.entrance if tied and same else None)

    def rows(self, batch: Batch) -> Tensor:
        """What the layers make of a batch, (b,n,dim)."""
        found: Tensor = self.stack(self.entrance(batch.inputs), mask=padding_mask(batch.keep))
        return found
