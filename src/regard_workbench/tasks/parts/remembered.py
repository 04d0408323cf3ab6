"""Methods whose answers an instance keeps: the examples of a split, pictures that are read again in every epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def remembered(
    method: Callable[Concatenate[Owner, Arguments], Answer],
) -> Callable[Concatenate[Owner, Arguments], Answer]:
    """Call a method once for each of its positional arguments; what it returned is kept with the instance."""
    name = f"{method.__name__} remembered"

    @functools.wraps(method)
    def lookup(self: Owner, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        answers: dict[Any, Answer] = vars(self).setdefault(name, {})
        if arguments not in answers:
            answers[arguments] = method(self, *arguments, **options)
        return answers[arguments]

    return lookup
