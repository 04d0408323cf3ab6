"""What a model is: a network built for a problem, by name. One file with `@model("name")` adds one.

`models.build("decoder", problem, dim=128, layers=4, attention="local(window=65)")`. A model is called with a `Batch`
and returns the logits that the problem's kind describes (`tasks/problem.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from regard import registry
from regard.core.options import read_options
from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.registry import Registry, parse
from regard.tasks.problem import Batch, Problem

MODELS: Registry[type[Model]] = Registry("model")
Kind = TypeVar("Kind", bound="type[Model]")


def model(name: str, *, serves: tuple[str, ...]) -> Callable[[Kind], Kind]:
    """Register the decorated class under `name`; `serves` are the kinds of problems it can be built for."""

    def register(cls: Kind) -> Kind:
        cls.name, cls.serves = name, serves
        MODELS.add(name, cls)
        return cls

    return register


class Model(nn.Module):
    """The base of every model."""

    name: ClassVar[str] = ""
    serves: ClassVar[tuple[str, ...]] = ()
    takes_attention: ClassVar[str] = (
        ""  # where `attention=` goes, in words; empty: nowhere, and it is refused
    )
    attention_default: ClassVar[str] = ""  # the mechanism it attends with when none is asked for, by name

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def forward(self, batch: Batch) -> Tensor:
        """The logits that the problem's kind describes."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """What the model writes for each example, best first; for problems that write sequences."""
        raise BadValue(f"model: {self.name} writes no sequences.")


def names() -> list[str]:
    """Every model by name, in alphabetical order."""
    return sorted(MODELS.names())


def serving(problems: list[Problem], name: str) -> Problem:
    """The first of a task's problems that the model `name` serves."""
    cls = MODELS[parse(name)[0]]
    for problem in problems:
        if problem.kind in cls.serves:
            return problem
    able = [other for other in names() if any(p.kind in MODELS[other].serves for p in problems)]
    kinds = " or ".join(dict.fromkeys(problem.kind for problem in problems))
    raise BadValue(
        f"model: {cls.name} serves {', '.join(cls.serves)}, but this task poses {kinds}. These can: {', '.join(able)}."
    )


def build(name: str, problem: Problem, **options: Any) -> Model:
    """The model called `name` for a problem; options may stand in the name: `decoder(layers=4, dim=128)`."""
    plain, inside = parse(name)
    cls = MODELS[plain]
    serving([problem], plain)
    chosen = {**inside, **{key: value for key, value in options.items() if value is not None}}
    known = options_of(cls)
    if "attention" in chosen and not cls.takes_attention:
        raise BadValue(f"attention: {plain} has no place for another attention; leave --attention out.")
    return cls(problem, **read_options(plain, cls, chosen, known))


def options_of(cls: type[Model]) -> dict[str, inspect.Parameter]:
    """The options of a model by name."""
    return registry.options_of(cls, leading=1)  # the problem
