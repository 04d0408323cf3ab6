"""Measure a model on a split: metrics, how sequences are decoded, and a hash of the examples that were read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.support.arguments import finite_number
from regard_workbench import models
from regard_workbench.tasks.measures.metrics import Answered, States, merged, observe, values
from regard_workbench.tasks.parts.batch import MADE_FROM, Batch
from regard_workbench.tasks.parts.task import SPLITS, Task
from regard_workbench.training.data import generator
from regard_workbench.training.signals import heartbeat
from regard_workbench.training.state import RandomState


class EvaluateOptions(TypedDict, total=False):
    """How `evaluate` walks over a split."""

    batch_size: int  # 32 by default
    limit: int | None  # the number of examples, by default all
    seed: int  # of what `collate` draws
    to_device: Callable[[Batch], Batch] | None  # by default to the device of the model's parameters
    stop: Callable[[], bool]  # asked before each batch; True abandons the evaluation
    autocast: Callable[[], Any]  # a context manager to enter around each call of the model
    share: tuple[int, int]  # (i, n): take only every n-th batch, from the i-th on
    gather: Callable[[States], list[States]] | None  # collects the metric states of all n processes
    on_batch: Callable[[States], None]  # called with the metric states of each batch


def evaluate(
    task: Task, model: models.Model, split: str = "validation", **options: Unpack[EvaluateOptions]
) -> dict[str, float] | None:
    """The metrics of a split, computed from the merged states of all batches; None if `stop` returned True."""
    states = metric_states(task, model, split, **options)
    return None if states is None else values(task.metrics(), states)


def metric_states(
    task: Task, model: models.Model, split: str = "validation", **options: Unpack[EvaluateOptions]
) -> States | None:
    """The state of each metric, merged over all batches; None if `stop` returned True."""
    batch_size, limit, seed = options.get("batch_size", 32), options.get("limit"), options.get("seed", 0)
    stop, autocast = options.get("stop", lambda: False), options.get("autocast", nullcontext)
    (first, stride), gather = options.get("share", (0, 1)), options.get("gather")
    on_batch = options.get("on_batch", lambda states: None)
    if split not in SPLITS:
        raise BadValue(f"split: expected one of {', '.join(SPLITS)}, got {split!r}.")
    examples = task.examples(split)
    count = len(examples) if limit is None else min(limit, len(examples))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    to_device = options.get("to_device") or (lambda batch: batch.to(device))
    metrics, batch_states = task.metrics(), []
    with evaluation_mode(model), torch.no_grad():
        for number, start in enumerate(range(0, count, batch_size)):
            heartbeat()
            if stop():
                return None
            if number % stride != first:
                continue
            chosen = range(start, min(start + batch_size, count))
            batch = task.batch(examples, chosen, generator(seed, split, number), model)
            with autocast():
                batch_state = observe(metrics, Answered(model, to_device(batch)))
            on_batch(batch_state)
            batch_states.append(batch_state)
    states = merged(metrics, batch_states)
    return states if gather is None else merged(metrics, gather(states))


def completions(
    task: Task,
    model: models.Model,
    split: str,
    *,
    batch_size: int,
    most: int,
    device: torch.device | str,
    autocast: Callable[[], Any] = nullcontext,
) -> dict[str, float]:
    """How well a model completes texts of a split, by metric; nothing where its task has none to complete."""
    beating = model.head.register_forward_pre_hook(lambda *given: heartbeat())
    try:
        with evaluation_mode(model), torch.no_grad(), autocast():
            completed_states = task.completed(model, split, batch_size=batch_size, most=most, device=device)
    finally:
        beating.remove()
    return {metric.name: metric.value(state) for metric, state in completed_states}


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode; afterwards restore the modes of all modules and the random generators."""
    training = {module: module.training for module in model.modules()}
    before = RandomState.now()
    model.eval()
    try:
        yield
    finally:
        before.restore()
        for module, mode in training.items():
            module.training = mode


class DecodingModel(models.Model):
    """A model whose `generate` uses the given decoding options unless the task passes its own."""

    def __init__(self, model: models.Model, decoding: dict[str, Any]) -> None:
        super().__init__(model.problem)
        self.model, self.decoding = model, decoding
        self.head = model.head
        for name in ("initial_state", "step"):  # of models that write token by token
            if callable(getattr(model, name, None)):
                setattr(self, name, getattr(model, name))

    def forward(self, batch: Batch) -> Any:
        return self.model(batch)

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The model's loss: a model may add to that of its head."""
        return self.model.loss(outputs, batch, smoothing)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What the model's outputs say, for each example."""
        return self.model.predict(outputs, batch)

    def attention_to_source(self, batch: Batch) -> dict[str, Tensor]:
        """That of the model, by the names of its own layers."""
        return self.model.attention_to_source(batch)

    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """Generate with the decoding options."""
        return self.model.generate(batch, **{**self.decoding, **options})


def decoding_of(task: Task, beam: int | None, length_penalty: float | None = None) -> dict[str, Any]:
    """The decoding options for a task: beam search of a width, or greedy; empty if the task generates nothing.

    `length_penalty` replaces the task's own.
    """
    decoding = task.problem.answer.decoding(beam)
    if beam is not None and not decoding:
        raise BadValue(f"--beam: evaluating {task.name} generates no text. Leave it out; `regard predict` takes it.")
    if length_penalty is None:
        return decoding
    if decoding.get("method") != "beam":
        raise BadValue("--length-penalty: only beam search compares texts of different lengths. Add --beam 5.")
    return {**decoding, "length_penalty": finite_number("--length-penalty", length_penalty)}


class Fingerprint:
    """The SHA-256 of the examples a model reads, without padding, so that it does not depend on the batch size."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, batch: Batch) -> None:
        """Add the examples of a batch."""
        if MADE_FROM in batch.notes:  # the tensors differ from model to model
            for origin in batch.notes[MADE_FROM]:
                self._digest.update(repr(origin).encode())
                self._digest.update(b"/")
            return
        for row in range(batch.size):
            for stream in (*batch.streams.values(), *batch.answers.values()):
                values, keep = stream.data, stream.keep
                row_values = values[row] if keep is None or values.dim() < 2 else values[row][keep[row]]
                self._digest.update(row_values.cpu().contiguous().numpy().tobytes())
                self._digest.update(b"/")

    @property
    def hexdigest(self) -> str:
        """The hash of the examples so far."""
        return self._digest.hexdigest()
