"""`encoder`: a bidirectional Transformer encoder, for masked pre-training and classification."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from regard.errors import unknown_name
from regard.nn.parts.blocks import ACTIVATIONS, make_norm
from regard_workbench.models.parts.embedding import joined_keep, pooled
from regard_workbench.models.parts.model import model
from regard_workbench.models.parts.reader import Reader
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

POOLINGS = ("mean", "first")
BEFORE_HEAD = ("none", "tanh", "norm", "gelu-norm")


@model("encoder", gives=("pooled", "rows"), reads=None, several_streams=True)
class Encoder(Reader):
    """A Transformer encoder with a head for each position or for the mean over positions.

    Paper: Devlin et al. 2019; the layers of Vaswani et al. 2017.
    All weights but the head's have the same names in both uses, so that `--init-from` carries them over.

    pooling: the row of an example is the mean over its positions, or that of its first position (BERT's `[CLS]`).
    before_head: what rows go through before the head: "none"; "tanh", tanh(W x + b), BERT's pooler; "norm",
    normalised activation(W x + b), before the head that fills gaps in BERT; "gelu-norm", the same with GELU
    whatever the layers take, in RoBERTa.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the positions"

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        activation: str = "gelu",
        norm_type: str = "layer",
        norm_eps: float | None = None,
        pooling: str = "mean",
        before_head: str = "none",
        **options: Any,
    ) -> None:
        super().__init__(problem, dim=dim, activation=activation, norm_type=norm_type, norm_eps=norm_eps, **options)
        if pooling not in POOLINGS:
            raise unknown_name("pooling", pooling, POOLINGS)
        if before_head not in BEFORE_HEAD:
            raise unknown_name("before_head", before_head, BEFORE_HEAD)
        self.pooling = pooling
        self.before_head: nn.Module = nn.Identity()
        if before_head != "none":
            acts = {"tanh": "tanh", "norm": activation, "gelu-norm": "gelu"}[before_head]
            norm = nn.Identity() if before_head == "tanh" else make_norm(norm_type, dim, norm_eps)
            self.before_head = BeforeHead(dim, acts, norm)

    def forward(self, batch: Batch) -> Any:
        pooling = self.problem.answer.needs == "pooled"
        if type(self.before_head) is nn.Identity and not pooling:
            return self.answer(batch)
        if type(self.before_head) is nn.Identity and self.pooling == "mean":
            return self.pooled_answer(batch)
        rows = self.rows(batch)
        if not pooling:
            return self.head(self.before_head(rows[:, : batch.inputs.shape[1]]), batch)
        vector = rows[:, 0] if self.pooling == "first" else pooled(rows, joined_keep(batch.streams.values()))
        return self.head(self.before_head(vector), batch)


class BeforeHead(nn.Module):
    """A linear map of rows, an activation and a normalisation."""

    def __init__(self, dim: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.map, self.activation, self.norm = nn.Linear(dim, dim), activation, norm

    def forward(self, rows: Tensor) -> Tensor:
        """(…,dim) → (…,dim)."""
        outputs: Tensor = self.norm(ACTIVATIONS[self.activation](self.map(rows)))
        return outputs
