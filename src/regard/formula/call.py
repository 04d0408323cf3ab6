"""The arguments of `attend`, spelled out once: `Call` holds them as a caller gave them.

Every verb takes `**options` and builds a `Call` from them. The request, the plan's signature and the observation of
calls read it. `Scoring` and `Options` tell type checkers the same names; a test compares them with `Call`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple, TypedDict, TypeVar, get_type_hints

from torch import Tensor

from regard.biases import Bias
from regard.errors import BadType, unknown_name
from regard.masks import Mask
from regard.normalizers import Normalizer
from regard.scores import Score

Verb = TypeVar("Verb", bound=Callable[..., Any])


class Scoring(TypedDict, total=False):
    """The options of `weights` and `summarize`, which every verb takes: how weights are computed."""

    score: str | Score
    mask: Mask | Tensor | None
    bias: Bias | Tensor | None
    normalize: str | Normalizer
    scale: float | None
    sink: Tensor | None


class Options(Scoring, total=False):
    """The options of `attend` and `explain`, less `return_logsumexp`, which decides the type of the result."""

    dropout: float
    impl: str


class Call(NamedTuple):
    """One call of `attend`, unchecked, with defaults filled in."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: str | Score = "scaled-dot"
    mask: Mask | Tensor | None = None
    bias: Bias | Tensor | None = None
    normalize: str | Normalizer = "softmax"
    scale: float | None = None
    dropout: float = 0.0
    sink: Tensor | None = None
    return_logsumexp: bool = False
    impl: str = "auto"


# Runs calls like an earlier one: query, key, value and the options as given. Returns None if it cannot this time.
Repeated = Callable[[Tensor, Tensor, Tensor, Mapping[str, Any]], Tensor | tuple[Tensor, Tensor] | None]

OPTIONS = Call._field_defaults.keys()
SCORING = Scoring.__annotations__.keys()


def read_call(
    verb: str, known: Set[str], query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]
) -> Call:
    """The call these arguments make. Raises for an option that is not `known` to the verb."""
    for name in options:  # not as sets: torch 2.11 cannot trace their comparison
        if name not in known:
            raise BadType(*unknown_name(f"option of {verb}", name, known).args)
    return Call(query, key, value, **options)


def spell_out(names: Set[str]) -> Callable[[Verb], Verb]:
    """Decorate a verb that takes `**options`: `help` and `inspect.signature` show these options by name."""

    def decorate(verb: Verb) -> Verb:
        declared, hints = inspect.signature(verb), get_type_hints(Call)
        parameters = [p for p in declared.parameters.values() if p.kind is not p.VAR_KEYWORD]
        tensors = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=Call._field_defaults[name], annotation=hints[name]
            )
            for name in OPTIONS
            if name in names
        ]
        further = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in names]
        verb.__signature__ = declared.replace(parameters=[*tensors, *options, *further])  # type: ignore[attr-defined]
        return verb

    return decorate
