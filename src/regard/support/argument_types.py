"""Compare the arguments of a public function with its own annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import nn

from regard.errors import BadType
from regard.support.arguments import described

Classes = Mapping[str, tuple[type, str]]  # what stands for a name of an annotation, and what it is in words

_WORDS: dict[Any, str] = {
    str: "text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    nn.Module: "a torch.nn.Module",
    torch.device: "a torch.device",
    torch.dtype: "a torch.dtype",
}


class ArgumentTypes:
    """The types that a function takes, by the names of its arguments. Those annotated with Any are not compared.

    classes: for names of annotations that are imported for type checkers only.
    """

    def __init__(self, function: Callable[..., Any], classes: Classes | None = None) -> None:
        classes = classes or {}
        self.names = list(inspect.signature(function).parameters)
        self.words = {**_WORDS, **dict(classes.values())}
        texts = {name: text for name, text in function.__annotations__.items() if name != "return"}
        names = {**function.__globals__, **{name: kind for name, (kind, _) in classes.items()}}
        self.hints = get_type_hints(SimpleNamespace(__annotations__=texts), names)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse the first argument of a call that does not fit, by its name."""
        for name, argument in [*zip(self.names, args, strict=False), *kwargs.items()]:
            if name in self.hints and not _fits(argument, self.hints[name]):
                raise BadType(f"{name}: expected {self._in_words(self.hints[name])}, got {described(argument)}.")

    def _in_words(self, hint: Any) -> str:
        kinds = [kind for kind in get_args(hint) or [hint] if kind is not NoneType]
        lists = [kind for kind in kinds if get_origin(kind) is Sequence]
        words = [self.words[kind] for kind in kinds if kind not in lists]
        return " or ".join([*words, *(f"a list of {self._in_words(get_args(kind)[0])}" for kind in lists)])


def _fits(argument: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(argument, kind) for kind in get_args(hint))
    if get_origin(hint) is Sequence:
        if not isinstance(argument, Sequence) or isinstance(argument, (str, bytes)):
            return False
        return all(_fits(entry, get_args(hint)[0]) for entry in argument)
    if hint in (int, float):
        return isinstance(argument, Integral if hint is int else Real) and not isinstance(argument, bool)
    return isinstance(argument, hint)
