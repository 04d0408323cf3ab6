"""`dynamic-transformer`: layers that update a memory while they read a sequence."""

from __future__ import annotations

from typing import Any, ClassVar

from regard_workbench.models.decoder import Decoder
from regard_workbench.models.parts.model import model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem


@model("dynamic-transformer", gives=("pooled", "rows", "past"))
class DynamicTransformer(Decoder):
    """Layers with `dynamic-memory` as their attention: a memory that is updated segment by segment.

    An answer for the whole example (made from the mean row) or for each position is read in both directions, as
    `static-transformer` reads; where a position must not see later ones, as in a language model, in one.
    """

    takes_attention: ClassVar[str] = "each layer's attention among the positions"
    attention_default: ClassVar[str] = "dynamic-memory(segment=4)"

    def __init__(self, problem: Problem, **options: Any) -> None:
        self.causal = problem.answer.needs == "past"
        super().__init__(problem, **options)

    def forward(self, batch: Batch) -> Any:
        if self.problem.answer.needs == "pooled":
            return self.pooled_answer(batch)
        return self.answer(batch)
