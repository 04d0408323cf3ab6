"""What goes into a task and what is right: the first of its three values, beside a `Judge` and a `Presenter`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, cast, overload

import torch

from regard.support.arguments import names_list, whole_number
from regard.support.declared import Declared
from regard_workbench.tasks.answers.answer import Answer
from regard_workbench.tasks.measures.metrics import Answering
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import StreamSpec
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.vocabulary import Vocabulary

# How a field of `Fitted` is read from JSON, by its type; of other types a subclass reads its own.
READERS: dict[Any, Callable[[str, Any], Any]] = {
    int: lambda name, number: whole_number(name, number, 1),
    list[str]: names_list,
    Vocabulary: lambda name, state: vocabulary.restored(state),
}


@dataclass(frozen=True)
class Fitted:
    """What the training data fixes: vocabulary, labels, lengths. Its fields are what a checkpoint keeps of a task."""

    def state(self) -> dict[str, Any]:
        """The fields as plain JSON data; those that are None are left out."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: field.state() if hasattr(field, "state") else field
            for name, field in fields.items()
            if field is not None
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        """What `state` was made of. Fields of types that `READERS` does not know keep their defaults."""
        types = typing.get_type_hints(cls)
        readable = [field.name for field in dataclasses.fields(cls) if types[field.name] in READERS]
        return cls(**{name: READERS[types[name]](name, state[name]) for name in readable})


FittedClass = TypeVar("FittedClass", bound=Fitted, covariant=True)


class Kept(Generic[FittedClass]):
    """The attribute `fitted` of a task: made by its `fit` when it is first read, or restored from a checkpoint."""

    def __init__(self, kind: type[FittedClass]) -> None:
        self.kind = kind

    @overload
    def __get__(self, task: None, owner: type[TaskData]) -> Self: ...
    @overload
    def __get__(self, task: TaskData, owner: type[TaskData]) -> FittedClass: ...
    def __get__(self, task: TaskData | None, owner: type[TaskData]) -> Self | FittedClass:
        if task is None:
            return self
        fitted = vars(task)["fitted"] = cast("FittedClass", task.fit())  # found before this from now on
        return fitted


class TaskData(Declared):
    """Streams, answers, examples and batches. A subclass declares its options and defines the first four methods."""

    fitted = Kept(Fitted)

    def streams(self) -> Mapping[str, StreamSpec]:
        """What goes in, by name. Models that read a single stream read the first."""
        raise NotImplementedError(f"{type(self).__name__} does not define streams")

    def answers(self) -> Sequence[Answer]:
        """What may come out, the usual answer first; a model gives the first that it can."""
        raise NotImplementedError(f"{type(self).__name__} does not define answers")

    def examples(self, split: str) -> Sequence[Any]:
        """The examples of a split ("train", "validation", "test"); always the same ones in the same order."""
        raise NotImplementedError(f"{type(self).__name__} does not define examples")

    def collate(self, examples: Sequence[Any], generator: torch.Generator) -> Batch:
        """A batch of examples. What is random in it (hidden words, noise) comes from `generator` alone."""
        raise NotImplementedError(f"{type(self).__name__} does not define collate")

    def fit(self) -> Fitted:
        """Learn from the training examples what models and batches depend on: a vocabulary, labels."""
        return Fitted()

    def state(self) -> dict[str, Any]:
        """What must be kept beside the weights to use them again (vocabulary, labels), as plain JSON data."""
        return self.fitted.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, instead of deriving it from the data."""
        vars(self)["fitted"] = type(self).fitted.kind.restored(state, self)
        self._by_split.clear()

    @cached_property
    def _by_split(self) -> dict[str, Any]:
        """What a task encodes once of each split that is asked for; anew after a state was restored."""
        return {}

    def problems(self) -> list[Problem]:
        """Every problem this task can pose, the usual one first."""
        return [Problem(self.streams(), answer) for answer in self.answers()]

    def pose(self, problem: Problem) -> None:
        """Select the problem that batches and metrics are made for."""
        self.problem = problem

    def length(self, example: Any) -> int:
        """How long an example is, for batches of similar length."""
        return len(example)

    def batch(
        self, examples: Sequence[Any], chosen: Sequence[int], generator: torch.Generator, model: Answering | None = None
    ) -> Batch:
        """A batch of chosen examples of a split.

        A task may be quicker than making each of them first: see `batches`. An agent makes its batch by acting with
        `model`; where there is none, it acts at random.
        """
        gathered = self.batches(examples, [chosen], [generator])
        return gathered[0] if gathered else self.collate([examples[index] for index in chosen], generator)

    def batches(
        self, examples: Sequence[Any], chosen: Sequence[Sequence[int]], generators: Iterable[torch.Generator]
    ) -> list[Batch] | None:
        """Several batches at once, each the same as by `collate`; None where that would not be quicker.

        A generator is valid until the next is taken; a task that draws nothing takes none.
        """
        return None
