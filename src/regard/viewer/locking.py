"""One question about a model at a time.

Some weights are only told by running a part of the model once more, with its switches set for a moment. A server has
several threads, so every question about a site waits for its turn; each is short, since long work asks row by row.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_TURN = threading.RLock()  # one for all: what is set for a moment may be a function of torch itself


class LockedSite:
    """A site that several threads may ask; everything else about it is as it was.

    first: for each call, how many positions stand before its first key. A cache that lets go of old keys hands over
        only the last ones; here they are again where they belong, behind keys of weight 0.
    """

    def __init__(self, site: Any, first: Sequence[int] = ()) -> None:
        self._site, self._first = site, first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def before(self, call: int = -1) -> int:
        """How many positions stand before the first key of a call."""
        return self._first[call] if self._first else 0

    def shape(self, call: int = -1) -> tuple[int, int, int, int]:
        """Batch, heads, queries and keys of a call."""
        batch, heads, queries, keys = self._site.shape(call)
        return batch, heads, queries, keys + self.before(call)

    def weights(self, rows: Any = None, heads: Any = None, call: int = -1) -> Tensor:
        """The exact weights (b, heads, rows, k)."""
        with _TURN:
            found: Tensor = self._site.weights(rows=rows, heads=heads, call=call)
        return F.pad(found, (self.before(call), 0)) if self.before(call) else found

    def columns_of(self, keys: Sequence[int], heads: Any = None, call: int = -1) -> Tensor:
        """What every query gives to chosen keys, (b, heads, q, keys)."""
        if self.before(call):
            return self.weights(None, heads, call)[..., list(keys)]
        with _TURN:
            found: Tensor = self._site.columns_of(keys, heads=heads, call=call)
        return found

    def summary(self, top: int = 8, call: int = -1) -> Any:
        """Statistics of all rows."""
        with _TURN:
            found = self._site.summary(top=top, call=call)
        more = self.before(call)
        if not more:
            return found
        keys = torch.where(found.top_keys >= 0, found.top_keys + more, found.top_keys)
        return dataclasses.replace(found, top_keys=keys, received=F.pad(found.received, (more, 0)))

    def pooled(self, height: int, width: int, heads: Any = None, call: int = -1, batch: int = 0) -> Tensor:
        """A small picture, (heads, height, width)."""
        if self.before(call):  # a window is small
            return F.adaptive_max_pool2d(self.weights(None, heads, call)[batch].float(), (height, width))
        with _TURN:
            found: Tensor = self._site.pooled(height, width, heads=heads, call=call, batch=batch)
        return found


class LockedSeen:
    """A `Seen` whose sites several threads may ask. Sites of which nothing can be told are left out."""

    def __init__(self, seen: Any) -> None:
        self._seen = seen
        self._names = [name for name in seen.names() if seen[name].calls and seen[name].shape(-1)[1]]
        self._first: dict[str, list[int]] = {}

    def set_first_keys(self, name: str, first: list[int]) -> None:
        """Say for each call of a site how many positions stand before its first key."""
        self._first[name] = first if any(first) else []

    def names(self) -> list[str]:
        """The sites in their order."""
        return list(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> LockedSite:
        return LockedSite(self._seen[name], self._first.get(name, ()))
