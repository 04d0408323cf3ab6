"""What a task is: data, batches, a loss, metrics. One file with `@task("name")` adds one.

    data      `examples(split)`: a sequence of examples; `collate(examples, generator)`: a `Batch` of them
    loss      `loss(outputs, batch)`: a sum and the number of terms in it, so that any split of a batch adds up exactly
    metrics   `measure(model, batch)`: sums and counts by name, and `finish`, which makes numbers of them

A task knows nothing of models beyond two calls: `model(batch)` gives the outputs its problem describes, and
`model.generate(batch)` gives hypotheses, best first, for problems that write sequences.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.options import read_options
from regard.errors import BadValue
from regard.registry import Registry, parse
from regard.tasks.problem import Batch, Problem

if TYPE_CHECKING:
    from regard.tasks.direction import Direction

Sums = dict[str, tuple[float, float]]  # metric → (sum, count)
_NOT_TEXT = ("true", "false", "none", "null", "yes", "no", "on", "off")  # bare, these are not read as text
SPLITS = ("train", "validation", "test")


class Answers(Protocol):
    """What a task asks of a model."""

    def __call__(self, batch: Batch) -> Tensor:
        """The outputs that the problem's kind describes."""

    def generate(self, batch: Batch, **options: Any) -> list[list[Any]]:
        """For each example hypotheses with `.tokens` and `.score`, best first."""


@dataclass(frozen=True)
class Recipe:
    """What trains well on a task by default: a task knows its own data best."""

    model: str = "encoder"
    steps: int = 1000
    batch_size: int = 32
    optimizer: str = "adamw"
    lr: float = 1e-3
    warmup: int = 50
    smoothing: float = 0.0
    accumulate: int = 1
    schedule: str = "cosine"
    clip: float = 1.0
    models: Mapping[str, str] = field(
        default_factory=dict
    )  # "decoder" → what the bare name means here: "decoder(layers=2)"


TASKS: Registry[type[Task]] = Registry("task")
Kind = TypeVar("Kind", bound="type[Task]")


def task(name: str) -> Callable[[Kind], Kind]:
    """Register the decorated class under `name`."""

    def register(cls: Kind) -> Kind:
        cls.name = name
        TASKS.add(name, cls)
        return cls

    return register


class Task:
    """The base of every task. A subclass sets `metric` and `recipe`, and defines `problems`, `examples`, `collate`."""

    name: ClassVar[str] = ""
    metric: ClassVar[str] = "accuracy"  # the one that decides which checkpoint is best
    higher_is_better: ClassVar[bool] = True
    recipe: ClassVar[Recipe] = Recipe()

    given: Mapping[str, Any] = MappingProxyType({})  # the options `build` was called with

    def typed(self, **options: Any) -> str:
        """This task with some options more, as the command line takes it: `"classify(encoding=latin-1)"`."""
        chosen = {**self.given, **options}
        return typed(self.name, {name: chosen[name] for name in chosen if name not in ("data", "whole")})

    def direction(self) -> Direction | None:
        """What is read and what is written, where the task turns one kind of text into another."""
        return None

    def problems(self) -> list[Problem]:
        """Every problem this task can pose, the usual one first; a model takes the first it serves."""
        raise NotImplementedError

    def pose(self, problem: Problem) -> None:
        """Say which of its problems the task is to pose from now on."""
        self.problem = problem

    def examples(self, split: str) -> Sequence[Any]:
        """The examples of a split ("train", "validation", "test"); always the same ones in the same order."""
        raise NotImplementedError

    def length(self, example: Any) -> int:
        """How long an example is, for batches of similar length."""
        return len(example)

    def collate(self, examples: Sequence[Any], generator: torch.Generator) -> Batch:
        """A batch of examples. What is random in it (hidden words, noise) comes from `generator` alone."""
        raise NotImplementedError

    def batch(self, examples: Sequence[Any], chosen: Sequence[int], generator: torch.Generator) -> Batch:
        """A batch of chosen examples of a split. A task may be quicker than making each of them first."""
        return self.collate([examples[index] for index in chosen], generator)

    def loss(self, outputs: Tensor, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of the losses of all that counts in a batch, in nats, and how much counts."""
        assert batch.targets is not None
        if self.problem.kind == "bits":
            each = F.binary_cross_entropy_with_logits(
                outputs.float(), batch.targets.float(), reduction="none"
            ).sum(-1)
        else:
            each = F.cross_entropy(
                outputs.float().flatten(0, -2),
                batch.targets.flatten(),
                reduction="none",
                label_smoothing=smoothing,
            ).view(batch.targets.shape)
        counts = torch.ones_like(each) if batch.target_keep is None else batch.target_keep.to(each)
        return each.masked_fill(counts == 0, 0).sum(), counts.sum()

    def measure(self, model: Answers, batch: Batch) -> Sums:
        """What the metrics add up from one batch: the loss and, where there is one right answer, how often it came."""
        assert batch.targets is not None
        outputs = model(batch)
        total, count = self.loss(outputs, batch)
        found: Sums = {"loss": (float(total.detach()), float(count))}
        if self.problem.kind != "bits":
            right = outputs.argmax(-1) == batch.targets
            counts = torch.ones_like(right) if batch.target_keep is None else batch.target_keep
            found["accuracy"] = (float((right & counts).sum()), float(counts.sum()))
        return found

    def finish(self, sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """The metrics, from their sums and counts over a split."""
        found = {name: total / count if count else math.nan for name, (total, count) in sums.items()}
        if self.problem.kind in ("language", "masked") and "loss" in found:
            found["perplexity"] = math.exp(min(found["loss"], 700.0))
        return found

    def encode(self, text: str) -> Any:
        """An example made of what a user typed, for `regard predict`."""
        raise BadValue(f"--text: the task {self.name} does not take text.")

    def decode(self, tokens: Sequence[int]) -> str:
        """What a model wrote, as a user reads it."""
        raise BadValue(f"the task {self.name} writes no text.")

    def state(self) -> dict[str, Any]:
        """What must be kept beside the weights to use them again (vocabulary, labels), as plain JSON data."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned, in place of what the data says."""


def typed(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as the command line takes it, quoted for a shell: `"classify(encoding=latin-1)"`."""
    return f'"{name}({", ".join(f"{option}={_typed(value)}" for option, value in options.items())})"'


def _typed(value: object) -> str:
    """A value inside the brackets: a bare word where that is read back as the same text, else as Python writes it."""
    bare = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value)
    return str(value) if bare and value.lower() not in _NOT_TEXT else repr(value)  # type: ignore[attr-defined]


def names() -> list[str]:
    """Every task by name, in alphabetical order."""
    return sorted(TASKS.names())


def build(name: str, state: Mapping[str, Any] | None = None, **options: Any) -> Task:
    """The task called `name`, for instance `build("copy", max_length=20)` or `build("copy(max_length=20)")`.

    With the `state` of a task that was used before, vocabulary and labels are taken from there, and no data is read
    yet: it may be gone, and is not needed to use what was learned.
    """
    plain, inside = parse(name)
    cls = TASKS[plain]
    given = read_options(plain, cls, {**inside, **options}, inspect.signature(cls).parameters)
    made = cls(**given)
    made.given = dict(given)
    if state:
        made.restore(state)
    made.pose(made.problems()[0])
    return made


def recipe_of(name: str, **changes: Any) -> Recipe:
    """The recipe of a task with some of it changed."""
    return dataclasses.replace(TASKS[name].recipe, **changes)
