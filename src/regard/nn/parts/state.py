"""State: what a mechanism carries from one call to the next. It is an argument and a result, never stored on a module.

A state is a frozen dataclass. The batch is the first axis of all its tensors, so that beam search reorders every state
in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from regard.errors import BadType, BadValue
from regard.support.arguments import described


@dataclasses.dataclass(frozen=True)
class State:
    """The base class of states. Fields are tensors (batch first), numbers, other states, and tuples of these."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the state with `change` applied to every tensor."""
        return dataclasses.replace(
            self, **{field.name: _changed(getattr(self, field.name), change) for field in dataclasses.fields(self)}
        )

    def reorder(self, index: Tensor) -> Self:
        """Return the state whose batch entry i is entry index[i] of this one, as beam search needs it."""
        return self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))

    def __deepcopy__(self, memo: Any) -> Self:
        return self.map(Tensor.clone)  # torch cannot deep-copy tensors that are not leaves of the autograd graph

    def detach(self) -> Self:
        """Return the state detached from the autograd graph, for truncated backpropagation through time."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> Self:
        """Return the state on another device."""
        return self.map(lambda tensor: tensor.to(device))


AnyState = TypeVar("AnyState", bound=State)


def of_kind(kind: type[AnyState], state: object) -> AnyState | None:
    """Return a state of this class, or None where no state was passed; raise for anything else."""
    if state is None or isinstance(state, kind):
        return state
    raise BadType(f"state: expected the result of initial_state() or of a call of this layer, got {described(state)}.")


def check_batch(held: Tensor, query: Tensor) -> None:
    """Raise unless a tensor of a state has the batch size of the query."""
    if held.shape[0] != query.shape[0]:
        raise BadValue(f"state: expected a batch of {query.shape[0]}, as in the query, got a batch of {held.shape[0]}.")


def _changed(content: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(content, Tensor):
        return change(content)
    if isinstance(content, State):
        return content.map(change)
    if isinstance(content, tuple):
        return tuple([_changed(element, change) for element in content])
    return content
