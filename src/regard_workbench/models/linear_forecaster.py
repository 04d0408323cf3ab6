"""`linear-forecaster`: one linear map from a window to the next values, the yardstick of forecasting."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard_workbench.models.parts.model import Model, model
from regard_workbench.tasks.answers import Forecast
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Vectors


class LinearMap(nn.Linear):
    """(b,context,columns) → (b,horizon,columns): the last value plus a weighted sum of the changes since it.

    The first forecast is the last value, repeated.
    """

    def reset_parameters(self) -> None:
        """Begin with weights of zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, window: Tensor) -> Tensor:
        """In at least float32 where it is added to the last value, which may be far larger than the changes."""
        wide = window.to(torch.promote_types(window.dtype, torch.float32))
        last = wide[:, -1:]
        changes = (wide - last).to(self.weight.dtype)
        return super().forward(changes.transpose(1, 2)).transpose(1, 2) + last


@model("linear-forecaster", gives=("future",), reads=(Vectors,))
class LinearForecaster(Model):
    """Each coming value is a weighted sum of a window's changes since its last value, plus that value.

    All columns share the weights. It does not attend to anything: what attention must beat.

    Paper: Zeng et al. 2023 (NLinear).
    """

    attention_default: ClassVar[str] = "none"
    width_option: ClassVar[str] = ""  # its size follows from the task

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        assert isinstance(problem.answer, Forecast) and problem.inputs.length is not None
        self.map = LinearMap(problem.inputs.length, problem.answer.horizon)
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        return self.head(self.map(batch.inputs), batch)
