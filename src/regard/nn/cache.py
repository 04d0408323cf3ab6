"""The key-value cache: one type for causal, windowed and cross-attention.

Nothing handed out is ever changed: a cache that was continued once can be continued again, and differently, also by
several threads at once. Steps are cheap all the same, because caches that follow each other share one store with room
at its end. Only the newest of them may write there, behind everything the others can see; any other one copies first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from regard.nn.state import State

_ROOM = 32  # a new store has at least this much room for further positions


class Store:
    """Keys and values (b,g,capacity,·), of which the first `filled` positions are taken."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        self.keys, self.values, self.filled = keys, values, filled
        self._claims = threading.Lock()

    def claims(self, end: int, new: int) -> bool:
        """Take `new` positions behind `end` for the cache that ends there, if it is the newest and they fit.

        Several threads may continue one cache. Only the first of them gets the room, because asking and taking are
        one step; it then writes there alone.
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

    `window`: only the last so many positions stay, whatever was seen. `fixed`: a source that was projected once and
    does not grow (cross-attention). `seen` counts every key that came, `steps` every query. `ids` are the documents of
    the keys, if every call so far had a mask that tells them.
    """

    keys: Tensor
    values: Tensor
    keep: Tensor | None = None  # (b,n), True = real; None: all are
    window: int | None = None
    fixed: bool = False
    seen: int = 0
    steps: int = 0
    store: Store | None = field(default=None, repr=False, compare=False)
    first: int = field(default=0, repr=False, compare=False)  # where in the store `keys` begins
    ids: tuple[Tensor, ...] = ()  # (b,n) for each masks.documents of the calls' masks

    @classmethod
    def empty(
        cls, batch: int, heads: int, key_dim: int, value_dim: int, window: int | None = None, **where: Any
    ) -> Cache:
        """A cache before anything was seen; `where` is the device and dtype."""
        return cls(
            torch.zeros(batch, heads, 0, key_dim, **where), torch.zeros(batch, heads, 0, value_dim, **where),
            window=window,
        )  # fmt: skip

    def extend(
        self, keys: Tensor, values: Tensor, keep: Tensor | None = None, ids: tuple[Tensor, ...] = ()
    ) -> Cache:
        """The cache that also holds these keys and values (b,g,new,·). The window is not cut yet: see `cut`.

        `keep` (b,new) tells which of the new ones are real, `ids` (b,seen+new) the documents of all keys that came.
        """
        new = keys.shape[2]
        joined = self._joined(keys, values)
        real = None
        if keep is not None or self.keep is not None:
            batch, held = keys.shape[0], self.keys.shape[2]
            before = self.keep if self.keep is not None else keys.new_ones(batch, held, dtype=torch.bool)
            now = keep if keep is not None else keys.new_ones(batch, new, dtype=torch.bool)
            real = torch.cat([before, now.expand(batch, new)], 1)
        return replace(
            self, keys=joined[0], values=joined[1], keep=real, seen=self.seen + new, store=joined[2], first=joined[3],
            ids=tuple([one[:, one.shape[1] - joined[0].shape[2] :] for one in ids]),
        )  # fmt: skip

    def fix(self, keys: Tensor, values: Tensor, keep: Tensor | None = None) -> Cache:
        """The cache of a source that is complete: later calls read it and add nothing."""
        return replace(
            self, keys=keys, values=values, keep=keep, fixed=True, seen=keys.shape[2], store=None, first=0
        )

    def cut(self) -> Cache:
        """The cache with only the last `window` positions."""
        if self.window is None or self.fixed or self.keys.shape[2] <= self.window:
            return self
        first = self.keys.shape[2] - self.window
        return replace(
            self, keys=self.keys[:, :, first:], values=self.values[:, :, first:],
            keep=None if self.keep is None else self.keep[:, first:], first=self.first + first,
            ids=tuple([one[:, first:] for one in self.ids]),
        )  # fmt: skip

    def stepped(self, queries: int) -> Cache:
        """The cache after that many more queries."""
        return replace(self, steps=self.steps + queries)

    def map(self, change: Any) -> Self:
        """The same cache with every tensor changed; it no longer shares a store."""
        return replace(
            self, keys=change(self.keys), values=change(self.values),
            keep=None if self.keep is None else change(self.keep), store=None, first=0,
            ids=tuple([change(one) for one in self.ids]),
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        # Views would take their whole store along.
        return {
            **self.__dict__,
            "keys": self.keys.clone(),
            "values": self.values.clone(),
            "store": None,
            "first": 0,
        }

    def _joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Store | None, int]:
        """Old and new keys and values together, the store they lie in, and where in it they begin."""
        # With gradients each cache needs its own tensors; a compiler wants to see plain operations.
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or keys.dtype != self.keys.dtype:
            old_keys, old_values = self.keys.to(keys.dtype), self.values.to(values.dtype)
            return torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2), None, 0
        held, new, store, first = self.keys.shape[2], keys.shape[2], self.store, self.first
        if store is None or not store.claims(first + held, new):
            capacity = held + new + max(_ROOM, held)
            store, first = Store(_wider(self.keys, capacity), _wider(self.values, capacity), held + new), 0
        end = first + held + new
        store.keys[:, :, end - new : end] = keys
        store.values[:, :, end - new : end] = values
        return store.keys[:, :, first:end], store.values[:, :, first:end], store, first


def _wider(tensor: Tensor, capacity: int) -> Tensor:
    """The same content with room behind it."""
    roomy = tensor.new_empty(*tensor.shape[:2], capacity, tensor.shape[3])
    roomy[:, :, : tensor.shape[2]] = tensor
    return roomy
