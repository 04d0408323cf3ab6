"""A model's inputs as one object, as far as causes need to know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Batched(Protocol):
    """Tensors by name that travel as one argument, such as the workbench's `Batch`."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        """The same with every tensor changed."""

    def rows(self, chosen: list[int]) -> Any:
        """The same with these examples only."""

    def times(self, count: int) -> Any:
        """The same with each example `count` times."""

    @classmethod
    def of(cls, data: Tensor) -> Any:
        """An object of this kind that holds one tensor."""
