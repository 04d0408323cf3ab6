"""While a sequence is shared by several ranks, layers see the positions of one rank and attend to those of all.

    with sharing(sequence):            # regard.parallel.ShardedSequence
        rows = model(local_inputs)

Positions then count from the first of the whole sequence, and `attend` goes through the other ranks. Only mechanisms
whose rows meet nowhere else can do that; the others refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.masks import Mask


class Shareable(Protocol):
    """What layers need of a `ShardedSequence`."""

    length: int

    @property
    def local_length(self) -> int:
        """The number of positions that this rank holds."""

    def positions(self, device: torch.device | str) -> Tensor:
        """The positions that this rank holds, (n,)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, exchange: str, **options: Any) -> Any:
        """`attend` of this rank's queries over the keys of all ranks."""


@dataclass(frozen=True)
class Sharing:
    """A sequence that is shared, its mask (padding, documents) and how ranks exchange it."""

    sequence: Shareable
    mask: Mask | None
    exchange: str


_CURRENT: list[Sharing] = []


@contextmanager
def sharing(sequence: Shareable, mask: Mask | None = None, exchange: str = "ring") -> Iterator[None]:
    """Within the block, layers get this rank's positions of `sequence`. `mask` covers all positions, for all layers."""
    _CURRENT.append(Sharing(sequence, mask, exchange))
    try:
        yield
    finally:
        _CURRENT.pop()


def current() -> Sharing | None:
    """The sequence that is shared now."""
    return _CURRENT[-1] if _CURRENT else None


def positions_from(first: int, length: int, device: torch.device) -> Tensor:
    """The positions of `length` rows, (length,): those from `first` on, or this rank's of a shared sequence."""
    shared = current()
    return torch.arange(first, first + length, device=device) if shared is None else shared.sequence.positions(device)


def whole_length(local: int) -> int:
    """The number of positions of the sequence of which `local` rows are here."""
    shared = current()
    return local if shared is None else shared.sequence.length
