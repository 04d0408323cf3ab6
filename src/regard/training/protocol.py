"""How a split is measured, beyond the numbers: the way sequences are written, and a hash of what the model read."""

from __future__ import annotations

import hashlib
from typing import Any

from regard import models
from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.tasks.answers import Writes
from regard.tasks.batch import Batch
from regard.tasks.task import Task


class Asked(models.Model):
    """A model that writes as the caller wants when a task asks it to write."""

    def __init__(self, model: models.Model, decoding: dict[str, Any]) -> None:
        super().__init__(model.problem)
        self.model, self.decoding = model, decoding
        self.head = model.head

    def forward(self, batch: Batch) -> Any:
        return self.model(batch)

    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """What the model writes, by the method that was asked for."""
        return self.model.generate(batch, **{**self.decoding, **options})


def decoding_of(task: Task, beam: int | None) -> dict[str, Any]:
    """How a task's sequences are written: with a beam of a width, or greedily; empty where none are."""
    answer = task.problem.answer
    if not isinstance(answer, Writes):
        if beam is not None:
            raise BadValue(
                f"--beam: nothing is written when {task.name} is evaluated. Leave it out; `regard predict` takes it."
            )
        return {}
    longest = answer.length
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
            for stream in (*batch.streams.values(), *batch.answers.values()):
                values, keep = stream.data, stream.keep
                own = values[row] if keep is None or values.dim() < 2 else values[row][keep[row]]
                self._digest.update(own.cpu().contiguous().numpy().tobytes())
                self._digest.update(b"/")

    @property
    def hexdigest(self) -> str:
        """The hash so far."""
        return self._digest.hexdigest()
