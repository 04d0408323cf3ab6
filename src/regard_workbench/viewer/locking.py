"""Sites that several threads may read, one at a time.

Some weights are computed by running a part of the model again with changed settings. A server has several threads, so
reads of sites are serialised by a lock; each is short, because long work reads block by block.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LOCK = threading.RLock()  # one for all sites: a function of torch itself may be replaced meanwhile


@contextmanager
def alone() -> Iterator[None]:
    """Nobody reads a site while the block runs a model."""
    with _LOCK:
        yield


class LockedSite:
    """A site that several threads may read.

    first: for each call, how many positions precede its first key. A cache that drops old keys passes only the last
        ones; here keys of weight 0 are put before them, so that columns are positions.
    example: which example of a batch is read; it becomes the only one.
    """

    def __init__(self, site: Any, first: Sequence[int] = (), example: int = 0) -> None:
        self._site, self._first, self._example = site, first, example

    def _own(self, batched: Tensor) -> Tensor:
        return batched[self._example : self._example + 1] if self._example else batched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def before(self, call: int = -1) -> int:
        """How many positions precede the first key of a call."""
        return self._first[call] if self._first else 0

    def shape(self, call: int = -1) -> tuple[int, int, int, int]:
        """Batch, heads, queries and keys of a call."""
        batch, heads, queries, keys = self._site.shape(call)
        return batch, heads, queries, keys + self.before(call)

    def weights(self, rows: Any = None, heads: Any = None, call: int = -1) -> Tensor:
        """The exact weights (b, heads, rows, k)."""
        with _LOCK:
            weights = self._own(self._site.weights(rows=rows, heads=heads, call=call))
        return F.pad(weights, (self.before(call), 0)) if self.before(call) else weights

    def columns_of(self, keys: Sequence[int], heads: Any = None, call: int = -1) -> Tensor:
        """The weights of all queries for chosen keys, (b, heads, q, keys)."""
        if self.before(call):
            return self.weights(None, heads, call)[..., list(keys)]
        with _LOCK:
            return self._own(self._site.columns_of(keys, heads=heads, call=call))

    def summary(self, top: int = 8, call: int = -1) -> Any:
        """Statistics of all rows."""
        with _LOCK:
            summary = self._site.summary(top=top, call=call)
        if self._example:
            names = [field.name for field in dataclasses.fields(summary)]
            summary = dataclasses.replace(summary, **{name: self._own(getattr(summary, name)) for name in names})
        more = self.before(call)
        if not more:
            return summary
        keys = torch.where(summary.top_keys >= 0, summary.top_keys + more, summary.top_keys)
        return dataclasses.replace(summary, top_keys=keys, received=F.pad(summary.received, (more, 0)))

    def pooled(self, height: int, width: int, heads: Any = None, call: int = -1, batch: int = 0) -> Tensor:
        """A reduced map, (heads, height, width)."""
        if self.before(call):  # a window of keys is small
            return F.adaptive_max_pool2d(self.weights(None, heads, call)[batch].float(), (height, width))
        with _LOCK:
            weights: Tensor = self._site.pooled(height, width, heads=heads, call=call, batch=batch + self._example)
        return weights


class LockedSeen:
    """A `Seen` whose sites several threads may read. Sites without readable weights are left out.

    example: which example of the batch is shown.
    """

    def __init__(self, seen: Any, example: int = 0) -> None:
        self._seen, self._example = seen, example
        self._names = [name for name in seen.names() if seen[name].calls and seen[name].shape(-1)[1]]
        self._first: dict[str, list[int]] = {}

    def set_first_keys(self, name: str, first: list[int]) -> None:
        """Set for each call of a site how many positions precede its first key."""
        self._first[name] = first if any(first) else []

    def names(self) -> list[str]:
        """The sites in their order."""
        return list(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> LockedSite:
        return LockedSite(self._seen[name], self._first.get(name, ()), self._example)
