"""How a split is measured, beyond the numbers: the way sequences are written, and a hash of what the model read."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from regard import models
from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.tasks.problem import Batch
from regard.tasks.task import Task


class Asked(models.Model):
    """A model that writes as the caller wants when a task asks it to write."""

    def __init__(self, model: models.Model, decoding: dict[str, Any]) -> None:
        super().__init__(model.problem)
        self.model, self.decoding = model, decoding

    def forward(self, batch: Batch) -> Tensor:
        found: Tensor = self.model(batch)
        return found

    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """What the model writes, by the method that was asked for."""
        return self.model.generate(batch, **{**self.decoding, **options})


def decoding_of(task: Task, beam: int | None) -> dict[str, Any]:
    """How a task's sequences are written: with a beam of a width, or greedily; empty where none are."""
    if task.problem.kind != "translate":
        if beam is not None:
            raise BadValue(
                f"--beam: nothing is written when {task.name} is evaluated. Leave it out; `regard predict` takes it."
            )
        return {}
    longest = task.problem.max_target
    if beam is None:
        return {"method": "greedy", "max_length": longest}
    return {"method": "beam", "beam": beam, "length_penalty": 1.0, "max_length": longest}


class Fingerprint:
    """A SHA-256 of examples as a model reads them, without their padding: the batch size must not show."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, batch: Batch) -> None:
        """Add the examples of a batch."""
        for row in range(batch.size):
            for values, keep in ((batch.inputs, batch.keep), (batch.targets, batch.target_keep)):
                if values is not None:
                    own = values[row] if keep is None or values.dim() < 2 else values[row][keep[row]]
                    self._digest.update(own.cpu().contiguous().numpy().tobytes())
                    self._digest.update(b"/")

    @property
    def hexdigest(self) -> str:
        """The hash so far."""
        return self._digest.hexdigest()
