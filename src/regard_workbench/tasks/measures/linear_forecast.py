"""The closed form of a linear forecast: the yardstick that `regard evaluate` prints beside a model.

Each coming value is a weighted sum of the window's changes since its last value, plus that value; the weights, which
all columns share, minimise the squared error on the training windows plus a small penalty (ridge regression).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTY = 1.0  # of the squared weights; the sum of squared errors is over thousands of windows


@dataclass(frozen=True)
class LinearForecast:
    """Weights (context,horizon) and an intercept (horizon,)."""

    weight: Tensor
    intercept: Tensor

    def __call__(self, past: Tensor) -> Tensor:
        """(b,context,columns) → (b,horizon,columns), in float64."""
        last = past[:, -1:].double()
        changes = (past.double() - last).transpose(1, 2)
        return (changes @ self.weight + self.intercept).transpose(1, 2) + last


def fitted(windows: Iterable[tuple[Tensor, Tensor, Tensor]], penalty: float = PENALTY) -> LinearForecast:
    """The best weights for windows (b,context,columns), what follows (b,horizon,columns) and where that is known.

    Windows whose continuation is not completely known are left out, column by column.
    """
    count, sums, products = 0, None, None
    for past, future, mask in windows:
        last = past[:, -1:].double()
        inputs, targets = (past.double() - last).transpose(1, 2), (future.double() - last).transpose(1, 2)
        complete = mask.all(1)
        rows = torch.cat([inputs[complete], targets[complete]], 1)  # (windows · columns, context + horizon)
        count += len(rows)
        sums = rows.sum(0) if sums is None else sums + rows.sum(0)
        # All that is needed: the products of inputs with inputs and with targets.
        products = _product(rows, inputs.shape[2], products)
    assert sums is not None and products is not None
    context = len(products)
    mean = sums / max(1, count)
    centered = products - count * torch.outer(mean[:context], mean)  # an intercept needs no penalty
    gram = centered[:, :context] + penalty * torch.eye(context, dtype=torch.float64)
    weight = torch.linalg.solve(gram, centered[:, context:])
    return LinearForecast(weight, mean[context:] - mean[:context] @ weight)


def _product(rows: Tensor, context: int, before: Tensor | None) -> Tensor:
    product = rows[:, :context].T @ rows
    return product if before is None else before + product
