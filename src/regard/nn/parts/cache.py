"""The key-value cache: one type for causal, windowed and cross-attention.

A cache is immutable: it can be extended any number of times, in different ways, also by several threads at once. A step
is cheap nevertheless, because consecutive caches share one store with spare capacity. Only the newest cache may write
there, after all positions that the others can see; extending an older one copies the store first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from regard.nn.parts.state import State

_ROOM = 32  # least spare capacity of a new store, in positions


class Store:
    """Keys and values (b,g,capacity,·), of which the first `filled` positions are in use."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        self.keys, self.values, self.filled = keys, values, filled
        self._claims = threading.Lock()

    def claims(self, end: int, new: int) -> bool:
        """Reserve `new` positions after `end` for the cache that ends there, if it is the newest and they fit.

        Several threads may extend one cache. The lock makes the reservation atomic, so that only the first of them
        writes to the reserved positions.
        """
        if self.keys.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with self._claims:
            if self.filled != end or end + new > self.keys.shape[2]:
                return False
            self.filled = end + new
            return True


@dataclass(frozen=True)
class Cache(State):
    """Keys (b,g,n,d) and values (b,g,n,v) in time order, and which of them are real.

    `window`: how many of the last positions are kept; None: all. `fixed`: the cache holds a source that was projected
    once and does not grow (cross-attention). `seen` counts all keys so far, `steps` all queries. `ids` are the document
    ids of the keys, if the mask of every call so far contained them.
    """

    keys: Tensor
    values: Tensor
    keep: Tensor | None = None  # (b,n), False = padding; None: no padding
    window: int | None = None
    fixed: bool = False
    seen: int = 0
    steps: int = 0
    store: Store | None = field(default=None, repr=False, compare=False)
    first: int = field(default=0, repr=False, compare=False)  # index in the store of the first of `keys`
    ids: tuple[Tensor, ...] = ()  # (b,n) for each masks.documents in the masks of the calls

    @classmethod
    def empty(
        cls, batch: int, heads: int, key_dim: int, value_dim: int, window: int | None = None, **where: Any
    ) -> Cache:
        """Return a cache without positions; `where` is its device and dtype."""
        return cls(
            torch.zeros(batch, heads, 0, key_dim, **where),
            torch.zeros(batch, heads, 0, value_dim, **where),
            window=window,
        )

    def extend(self, keys: Tensor, values: Tensor, keep: Tensor | None = None, ids: tuple[Tensor, ...] = ()) -> Cache:
        """Return a cache with these keys and values (b,g,new,·) appended, before the window is applied: see `cut`.

        `keep` (b,new) is False for padding, `ids` (b,seen+new) are the document ids of all keys so far.
        """
        new = keys.shape[2]
        joined = self._joined(keys, values)
        real = None
        if keep is not None or self.keep is not None:
            batch, old_length = keys.shape[0], self.keys.shape[2]
            before = self.keep if self.keep is not None else keys.new_ones(batch, old_length, dtype=torch.bool)
            added = keep if keep is not None else keys.new_ones(batch, new, dtype=torch.bool)
            real = torch.cat([before, added.expand(batch, new)], 1)
        return replace(
            self,
            keys=joined[0],
            values=joined[1],
            keep=real,
            seen=self.seen + new,
            store=joined[2],
            first=joined[3],
            ids=tuple([ids_of_rows[:, ids_of_rows.shape[1] - joined[0].shape[2] :] for ids_of_rows in ids]),
        )

    def fix(self, keys: Tensor, values: Tensor, keep: Tensor | None = None) -> Cache:
        """Return the cache of a complete source, which later calls read but do not extend."""
        return replace(self, keys=keys, values=values, keep=keep, fixed=True, seen=keys.shape[2], store=None, first=0)

    def cut(self) -> Cache:
        """Return the cache with the last `window` positions only."""
        if self.window is None or self.fixed or self.keys.shape[2] <= self.window:
            return self
        first = self.keys.shape[2] - self.window
        return replace(
            self,
            keys=self.keys[:, :, first:],
            values=self.values[:, :, first:],
            keep=None if self.keep is None else self.keep[:, first:],
            first=self.first + first,
            ids=tuple([ids_of_rows[:, first:] for ids_of_rows in self.ids]),
        )

    def stepped(self, queries: int) -> Cache:
        """Return the cache with the query counter advanced."""
        return replace(self, steps=self.steps + queries)

    def map(self, change: Any) -> Self:
        """Return the cache with `change` applied to every tensor. It has no store in common with this one."""
        return replace(
            self,
            keys=change(self.keys),
            values=change(self.values),
            keep=None if self.keep is None else change(self.keep),
            store=None,
            first=0,
            ids=tuple([change(ids_of_rows) for ids_of_rows in self.ids]),
        )

    def __getstate__(self) -> dict[str, Any]:
        # Clone, because pickling a view would write the whole store.
        return {**self.__dict__, "keys": self.keys.clone(), "values": self.values.clone(), "store": None, "first": 0}

    def _joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Store | None, int]:
        """Join old and new keys and values; return them, their store, and their first index in it."""
        # Autograd needs separate tensors for each cache, and a compiler plain operations.
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or keys.dtype != self.keys.dtype:
            old_keys, old_values = self.keys.to(keys.dtype), self.values.to(values.dtype)
            return torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2), None, 0
        old_length, new, store, first = self.keys.shape[2], keys.shape[2], self.store, self.first
        if store is None or not store.claims(first + old_length, new):
            capacity = old_length + new + max(_ROOM, old_length)
            store, first = Store(_wider(self.keys, capacity), _wider(self.values, capacity), old_length + new), 0
        end = first + old_length + new
        store.keys[:, :, end - new : end] = keys
        store.values[:, :, end - new : end] = values
        return store.keys[:, :, first:end], store.values[:, :, first:end], store, first


def _wider(tensor: Tensor, capacity: int) -> Tensor:
    """Copy a tensor into one with this capacity."""
    roomy = tensor.new_empty(*tensor.shape[:2], capacity, tensor.shape[3])
    roomy[:, :, : tensor.shape[2]] = tensor
    return roomy
