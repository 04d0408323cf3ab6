"""The values that follow a series: a number for each column at each coming step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from regard.tasks.answers.answer import Answer, Head
from regard.tasks.batch import Batch


@dataclass(frozen=True)
class Forecast(Answer):
    """The next `horizon` values of each column: outputs (b,horizon,columns); the target is the same, in numbers."""

    horizon: int
    columns: int
    needs: ClassVar[str] = "future"
    words: ClassVar[str] = "the next values of each column"
    terms: ClassVar[str] = "values"
    units: ClassVar[str] = "windows"

    @property
    def outputs(self) -> int:
        """The numbers of a forecast."""
        return self.horizon * self.columns

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> ForecastHead:
        """A linear map to all values; without `dim`, what the model gives is the forecast."""
        return ForecastHead(self, dim)


@dataclass(frozen=True)
class PooledForecast(Forecast):
    """The same, from one row for each window: for models that do not read each column by itself."""

    needs: ClassVar[str] = "pooled"
    words: ClassVar[str] = "the next values of all columns"


class ForecastHead(Head):
    """From one row: the changes since the last value of each column. The loss is the squared error."""

    def __init__(self, answer: Forecast, dim: int | None) -> None:
        super().__init__(answer.outputs, dim)
        self.shape = (answer.horizon, answer.columns)

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """(b,horizon,columns), from those, or from one row (b,dim)."""
        if isinstance(self.logits, nn.Identity):
            return rows
        changes: Tensor = self.logits(rows).unflatten(-1, self.shape)
        return changes + batch.inputs[:, -1:].to(changes.dtype)

    def each_loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The squared error of each value."""
        assert batch.targets is not None
        found: Tensor = (outputs.float() - batch.targets.float()).square()
        return found

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The values, step by step."""
        found: list[Any] = outputs.float().tolist()
        return found
