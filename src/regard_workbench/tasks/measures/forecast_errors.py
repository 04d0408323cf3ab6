"""Errors of a forecast: mean squared and mean absolute, over the values that are known."""

from __future__ import annotations

from torch import Tensor

from regard_workbench.tasks.measures.metrics import Answered, Mean


def _squares(answered: Answered) -> tuple[float, float] | None:
    return _errors(answered, 2)


def _distances(answered: Answered) -> tuple[float, float] | None:
    return _errors(answered, 1)


def _errors(answered: Answered, power: int) -> tuple[float, float] | None:
    if answered.batch.targets is None:
        return None
    return summed(answered.outputs, answered.batch.targets, answered.counts, power)


def summed(found: Tensor, true: Tensor, known: Tensor, power: int) -> tuple[float, float]:
    """The sum of |error|^power over known values, in float64, and their number."""
    errors = (found.double() - true.double()).abs().pow(power)[known]
    return float(errors.sum()), float(known.sum())


MSE = Mean("mse", higher_is_better=False, over="values", look=_squares)
MAE = Mean("mae", higher_is_better=False, over="values", look=_distances)
LINEAR_MSE = Mean("linear_mse", higher_is_better=False, over="values")
LINEAR_MAE = Mean("linear_mae", higher_is_better=False, over="values")
