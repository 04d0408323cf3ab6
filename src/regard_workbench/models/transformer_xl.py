"""`transformer-xl`: a language model that reads in segments and remembers the one before."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.models.decoder import Decoder
from regard_workbench.models.parts.model import model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens


@model("transformer-xl", gives=("past",), reads=(Tokens,))
class TransformerXL(Decoder):
    """`decoder` with relative positions and recurrence between segments: each layer also sees the last `memory` rows.

    Paper: Dai et al. 2019, sections 3.2 and 3.3. What is remembered passes no gradient back (section 3.2), so that long
    inputs train at the cost of a segment. Without gradients the result is that of one call over everything in reach.
    """

    attention_default: ClassVar[str] = "relative(positions=transformer-xl)"  # its window is `memory` + 1

    def __init__(
        self, problem: Problem, *, segment: int = 64, memory: int = 64, attention: str | None = None, **options: Any
    ) -> None:
        self.segment = whole_number("segment", segment, 1)
        window = whole_number("memory", memory, 0) + 1
        chosen = attention or f"relative(positions=transformer-xl, window={window})"
        if "positions" in options:
            raise BadValue("positions: transformer-xl has relative ones. Leave it out, or choose another attention.")
        super().__init__(problem, attention=chosen, positions="none", **options)

    def rows(self, batch: Batch) -> Tensor:
        keep = batch.keep
        if keep is not None and bool((keep[:, 1:] & ~keep[:, :-1]).any()):
            raise BadValue("model: transformer-xl reads texts with padding after them; got padding before a token.")
        rows = self.embedding(batch.inputs)
        state = self.initial_state(batch.size)
        outputs = []
        for segment_rows in rows.split(self.segment, 1):
            read, state = self.stack.step(segment_rows, state)
            outputs.append(read)
            state = state.detach()
        return torch.cat(outputs, 1) if outputs else rows
