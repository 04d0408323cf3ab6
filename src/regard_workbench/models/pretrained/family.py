"""A family of checkpoints: which model of regard it is, from its configuration, and what its tensors are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from regard.errors import BadValue
from regard.registry import Registry
from regard_workbench.models.pretrained.names import Line
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.tasks.parts.problem import Problem

BASE = "base:"  # begins a name of the base model in a table
ROWS = "rows"  # the answer of a model without a head

FAMILIES: Registry[Family] = Registry("model_type")


@dataclass(frozen=True)
class ModelPlan:
    """The model of a checkpoint: its name, its options, the problem it is built for, and its table of names."""

    model: str
    body: Mapping[str, Any]  # options of the layers, which `--init-from` takes over
    problem: Problem
    lines: list[Line]
    head: Mapping[str, Any] = field(default_factory=dict)  # options of what follows the layers

    @property
    def options(self) -> dict[str, Any]:
        """All options of the model."""
        return {**self.body, **self.head}


class Family(ABC):
    """The base of a family. `prefix` begins the names of what the base model has, in files of models with a head."""

    model_types: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]]  # of settings that a configuration may leave out
    architectures: ClassVar[Mapping[str, str]]  # class of transformers → what it answers
    ignored: ClassVar[tuple[str, ...]] = ()  # names of buffers that can be computed

    unused: ClassVar[tuple[str, ...]] = ()  # tensors that a model of regard may have no place for

    aliases: ClassVar[Mapping[str, str]] = {}  # other names under which files may hold a tensor

    def defaults_of(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that a configuration of its model type may leave out."""
        return self.defaults

    def answers(self, config: Mapping[str, Any]) -> tuple[str, str]:
        """The class of transformers that a configuration names, and what it answers."""
        named = config.get("architectures")
        first = named[0] if isinstance(named, list) and named else None
        if first is None:  # the first class of this model type
            kind = str(config.get("model_type"))
            first = next(name for name in self.architectures if name.lower().startswith(kind))
        if not isinstance(first, str) or first not in self.architectures:
            raise BadValue(
                f"config.json: architectures: expected one of {', '.join(self.architectures)}, got {str(first)[:80]!r}."
            )
        return first, self.architectures[first]

    @abstractmethod
    def plan(self, settings: Settings, answers: str) -> ModelPlan:
        """The model for a configuration. Names of the base model begin with `BASE` in the place of the prefix."""


def register(family: Family) -> None:
    """Add a family under each of its model types."""
    for model_type in family.model_types:
        FAMILIES.add(model_type, family)
