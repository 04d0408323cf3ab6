"""State: what a mechanism carries from one call to the next. It is passed in and handed back, never kept.

A state is a frozen dataclass. Its tensors have the batch as their first axis, so that one rule reorders all of them
for a beam search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from regard.core.arguments import described
from regard.errors import BadType, BadValue


@dataclasses.dataclass(frozen=True)
class State:
    """The base of every state: tensors (batch first), numbers, and states inside it."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same state with every tensor changed."""
        return dataclasses.replace(
            self,
            **{field.name: _changed(getattr(self, field.name), change) for field in dataclasses.fields(self)},
        )

    def reorder(self, index: Tensor) -> Self:
        """The state in which batch entry i is what entry index[i] was: for beams that move or multiply."""
        return self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))

    def __deepcopy__(self, memo: Any) -> Self:
        return self.map(Tensor.clone)  # torch's own copy refuses tensors that have a history of gradients

    def detach(self) -> Self:
        """The same state without a history of gradients: truncated backpropagation through time."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> Self:
        """The same state on another device."""
        return self.map(lambda tensor: tensor.to(device))


Kind = TypeVar("Kind", bound=State)


def of_kind(kind: type[Kind], state: object) -> Kind | None:
    """A state that was passed, if it is one of this layer's; None where none was."""
    if state is None or isinstance(state, kind):
        return state
    raise BadType(
        f"state: expected what initial_state() of this layer or a call returned, got {described(state)}."
    )


def check_batch(held: Tensor, query: Tensor) -> None:
    """Raise unless a tensor of a state is for as many examples as the query has."""
    if len(held) != len(query):
        raise BadValue(f"state: it is for a batch of {len(held)}, the query has {len(query)}.")


def _changed(content: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(content, Tensor):
        return change(content)
    if isinstance(content, State):
        return content.map(change)
    if isinstance(content, tuple):
        return tuple([_changed(part, change) for part in content])
    return content
