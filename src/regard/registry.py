"""A table from names to things, with one error text for a name that is not in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from regard.errors import unknown_name

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Things of one kind by name: scores, normalisers, implementations, later mechanisms, models and tasks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> Thing:
        """Register `thing` under `name`; the latest registration wins, so that a notebook cell can be run again."""
        self._things[name] = thing
        return thing

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things:
            raise unknown_name(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def names(self) -> list[str]:
        """Every registered name, in the order of registration."""
        return list(self._things)
