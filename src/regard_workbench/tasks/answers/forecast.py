"""The values that follow a series: a number for each column at each coming step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Decoded, Head
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.streams import Vectors


@dataclass(frozen=True)
class Forecast(Answer):
    """The next `horizon` values of each column: outputs (b,horizon,columns); the target is the same, in numbers."""

    horizon: int
    columns: int
    absolute: bool = False  # whether training minimises absolute errors instead of squared ones
    needs: ClassVar[str] = "future"
    scored: ClassVar[bool] = False
    words: ClassVar[str] = "the next values of each column"  # of all forms: their numbers compare
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


@dataclass(frozen=True)
class ForecastSteps(Forecast, Decoded):
    """The same, from a decoder's row for each coming step.

    The decoder writes all steps in one pass and reads none of its own values: in place of each coming row it is given
    the last known one. So training and forecasting are the same, and no error is carried from step to step. This is
    the generative inference of Informer (Zhou et al. 2021) without its start tokens: the decoder attends to the whole
    window anyway.
    """

    needs: ClassVar[str] = "steps"

    @property
    def outputs(self) -> int:
        """The numbers of a step."""
        return self.columns

    def decoder_stream(self) -> Vectors:
        """A number for each column at each coming step."""
        return Vectors(self.columns, self.horizon)

    def decoder_inputs(self, batch: Batch) -> Tensor:
        """The last known values at each coming step, (b,horizon,columns)."""
        return batch.inputs[:, -1:].expand(-1, self.horizon, -1)


class ForecastHead(Head):
    """The changes since the last value of each column, from one row for all steps or from one for each.

    The loss is the squared error, or the absolute one.
    """

    def __init__(self, answer: Forecast, dim: int | None) -> None:
        super().__init__(answer.outputs, dim)
        self.shape, self.absolute = (answer.horizon, answer.columns), answer.absolute

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """(b,horizon,columns), from those, from one row (b,dim) or from rows (b,horizon,dim)."""
        if isinstance(self.logits, nn.Identity):
            return rows
        changes: Tensor = self.logits(rows).reshape(len(rows), *self.shape)
        return changes + batch.inputs[:, -1:].to(changes.dtype)

    def each_loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The squared or absolute error of each value."""
        assert batch.targets is not None
        errors: Tensor = widened(outputs) - widened(batch.targets)
        return errors.abs() if self.absolute else errors.square()

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """The values, step by step."""
        values: list[Any] = outputs.float().tolist()
        return values
