"""A classifier on a batch, as an attack sees it: losses and right answers for other inputs in the place of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.errors import BadValue
from regard_workbench import models
from regard_workbench.attacks.pixels import slope
from regard_workbench.tasks.answers import OneOf, OneOfAfterEach
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.streams import Patches, StreamSpec, Tokens, Vectors
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.pictures.normalized import from_pixels, to_pixels

PICTURES, TEXTS = "pictures", "texts"
ROUNDING = 1e-5  # of pixels that were normalised and back


def kind_of(task: Task) -> str:
    """What is attacked of a task's classifiers: `PICTURES` or `TEXTS`; others are refused, and the message says why.

    The first stream is attacked. What else a classifier reads (a question about a picture) stays as it is.
    """
    streams = list(task.problem.streams.values())
    if not isinstance(task.problem.answer, OneOf | OneOfAfterEach):
        raise BadValue(
            f"run: expected a classifier, but {task.name} asks for {task.problem.answer.words}. Attack a run of a "
            "task such as digits or classify."
        )
    if not isinstance(streams[0], Tokens | Vectors):
        reads = " and ".join(spec.words for spec in streams)
        raise BadValue(f"run: expected a task that reads a picture or a text, but {task.name} reads {reads}.")
    return TEXTS if isinstance(streams[0], Tokens) else PICTURES


@dataclass(frozen=True)
class Target:
    """A model in evaluation mode, and examples with their classes, on the model's device."""

    model: models.Model
    batch: Batch
    inputs: Tensor  # what an attack changes: ids of tokens (b,n) or (b,n,columns), or pixels (b,n,width) from 0 to 1

    @classmethod
    def of(cls, model: models.Model, batch: Batch) -> Target:
        """A model on a batch; numbers that are no pixels are refused."""
        spec = model.problem.inputs
        return cls(model, batch, batch.inputs if isinstance(spec, Tokens) else _pixels(batch.inputs, spec))

    def reading(self, inputs: Tensor) -> Batch:
        """The batch with other inputs."""
        spec = self.model.problem.inputs
        data = from_pixels(inputs, spec) if isinstance(spec, Patches) else inputs
        name, first = next(iter(self.batch.streams.items()))
        return replace(self.batch, streams={**self.batch.streams, name: replace(first, data=data)})

    def repeated(self, times: int) -> Target:
        """Each example so many times, one after the other."""

        def repeat(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(times, 0)

        return replace(self, batch=self.batch.map(repeat), inputs=repeat(self.inputs))

    def losses(self, inputs: Tensor) -> Tensor:
        """The loss of each example with other inputs, (b,); where a model answers step by step, of the last answer."""
        batch = self.reading(inputs)
        outputs = self.model(batch)
        if isinstance(self.model.problem.answer, OneOfAfterEach):
            assert batch.targets is not None
            return cross_entropy(outputs.logits[:, -1].float(), batch.targets, reduction="none")
        return self.model.head.each_loss(outputs, batch)

    @torch.no_grad()
    def predicted(self, inputs: Tensor) -> Tensor:
        """The class that the model gives to each example with other inputs, (b,)."""
        batch = self.reading(inputs)
        predictions = self.model.predict(self.model(batch), batch)
        classes = [prediction["class"] if isinstance(prediction, dict) else prediction for prediction in predictions]
        return torch.tensor(classes, device=inputs.device)

    def right(self, inputs: Tensor) -> Tensor:
        """Whether the model's class is the right one, (b,)."""
        return self.compared(self.predicted(inputs))

    def compared(self, predicted: Tensor) -> Tensor:
        """Which of the predicted classes (b,) are the right ones."""
        assert self.batch.targets is not None
        return predicted == self.batch.targets

    @torch.no_grad()
    def stronger(self, first: Tensor, second: Tensor) -> Tensor:
        """Of two attacks, for each example the one that is classified wrongly, else the one with the larger loss."""
        fooled = self.right(first).int() - self.right(second).int()  # 1: only the second fools the model
        better = (fooled > 0) | ((fooled == 0) & (self.losses(second) > self.losses(first)))
        return torch.where(better.view(-1, *[1] * (first.dim() - 1)), second, first)

    def vectors(self) -> nn.Module:
        """The module that turns ids into vectors."""
        embedding = getattr(getattr(self.model, "embedding", None), "rows", None)
        if not isinstance(embedding, nn.Module):
            raise BadValue(f"run: {self.model.name} has no embedding of its tokens through which it can be attacked.")
        return embedding

    def vector_slope(self, inputs: Tensor) -> Tensor:
        """The gradient of each example's loss with respect to the vectors of its tokens, (b,n,dim)."""
        embedding = self.vectors()
        with torch.no_grad():
            rows: Tensor = embedding(inputs)

        def losses(changed: Tensor) -> Tensor:
            def instead(module: nn.Module, given: Any, made: Tensor) -> Tensor:
                return changed

            hook = embedding.register_forward_hook(instead)
            try:
                return self.losses(inputs)
            finally:
                hook.remove()

        return slope(losses, rows)


def _pixels(rows: Tensor, spec: StreamSpec) -> Tensor:
    """The pixels of a stream; others are refused: a budget and the limits of a pixel would mean nothing."""
    if not rows.is_floating_point():
        raise BadValue(f"run: expected pixels from 0 to 1, got {rows.dtype}.")
    normalised = isinstance(spec, Patches) and bool(spec.mean)
    pixels = to_pixels(rows, spec) if isinstance(spec, Patches) else rows
    low, high = (float(end) for end in torch.aminmax(pixels))
    room = ROUNDING if normalised else 0.0
    if low < -room or high > 1 + room:
        raise BadValue(
            f"run: expected pixels from 0 to 1, but it reads numbers from {low:.3g} to {high:.3g}. Only classifiers of "
            "pictures and of texts can be attacked."
        )
    return pixels.clamp(0, 1)
