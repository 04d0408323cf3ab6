"""A model as a policy that is asked step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard_workbench.tasks.parts.batch import Batch, Stream


class PolicyOfModel:
    """Reads each observation once, with the model's cache; where a model has none, with all steps so far."""

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.device = model, model.head.used.device
        self.state = model.initial_state(size) if callable(getattr(model, "step", None)) else None
        self.past: list[Tensor] = []

    def __call__(self, seen: Tensor) -> Tensor:
        """Logits and the return to expect, (b,actions+1), from the next observations (b,width)."""
        if self.state is not None:
            outputs, self.state = self.model.step(seen[:, None].to(self.device), self.state)
        else:
            self.past.append(seen.to(self.device))
            outputs = self.model(Batch({"seen": Stream(torch.stack(self.past, 1))}))
        predictions: Tensor = outputs[:, -1].cpu()
        return predictions

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only: the other episodes have ended."""
        if self.state is not None:
            self.state = self.state.reorder(rows)
        self.past = [observations[rows.to(self.device)] for observations in self.past]
