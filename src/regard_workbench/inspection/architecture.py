"""The picture of one of the workbench's models."""

from __future__ import annotations

from regard.observation import architecture
from regard.observation.architecture.labels import words
from regard_workbench.models.parts.model import Model
from regard_workbench.tasks.parts.batch import Batch


def of_model(model: Model, batch: Batch) -> architecture.Diagram:
    """The picture of a model, from one call with a batch."""
    inputs = {words(name): stream.data for name, stream in batch.streams.items()}
    if batch.targets is not None:
        inputs["targets so far"] = batch.targets
    answer = model.problem.answer
    output = "the next target token" if answer.needs == "decoder" else answer.words
    return architecture.drawn(model, lambda: model(batch), inputs, output, model.name)
