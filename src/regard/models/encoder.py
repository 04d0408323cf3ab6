"""`encoder`: reads a whole sequence in both directions. Pre-trained by filling blanks, then it classifies."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from regard.models.ends import Entrance, Exit, padding_mask, pooled
from regard.models.model import Model, model
from regard.models.stack import Stack
from regard.tasks.problem import Batch, Problem


@model("encoder", serves=("classify", "masked"))
class Encoder(Model):
    """A Transformer encoder. For `masked` problems it guesses hidden words, for `classify` ones the class of the mean.

    Paper: Devlin et al. 2019; the layers of Vaswani et al. 2017.
    All weights but the exit's have the same names in both uses, so that `--init-from` carries them over.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the positions"
    attention_default: ClassVar[str] = "multihead"

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
    ) -> None:
        super().__init__(problem)
        self.entrance = Entrance(
            problem.inputs, dim, positions=positions, max_length=problem.max_length, dropout=dropout
        )
        self.stack = Stack(
            dim, layers, attention or self.attention_default, num_heads=num_heads, norm=norm, dropout=dropout,
            attention_dropout=attention_dropout, hidden=hidden, gated=gated,
        )  # fmt: skip
        self.exit = Exit(dim, problem.outputs)

    def forward(self, batch: Batch) -> Tensor:
        rows = self.stack(self.entrance(batch.inputs), mask=padding_mask(batch.keep))
        if self.problem.kind == "classify":
            rows = pooled(rows, batch.keep)
        found: Tensor = self.exit(rows)
        return found
