"""`linear-forecaster`: one linear map from a window to the next values, the yardstick of forecasting."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from regard.models.model import Model, model
from regard.tasks.answers import Forecast
from regard.tasks.batch import Batch
from regard.tasks.problem import Problem
from regard.tasks.streams import Vectors


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
        self.map = nn.Linear(problem.inputs.length, problem.answer.horizon)
        nn.init.zeros_(self.map.weight)  # the first forecast is the last value, repeated
        nn.init.zeros_(self.map.bias)
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        wide = torch.promote_types(batch.inputs.dtype, torch.float32)
        last = batch.inputs[:, -1:].to(wide)
        changes = (batch.inputs.to(wide) - last).to(self.map.weight.dtype)
        return self.head(self.map(changes.transpose(1, 2)).transpose(1, 2) + last, batch)
