"""The skeleton of every mechanism that projects its inputs and calls `attend`.

A call goes: check → project queries and source → remember keys (with a state) → join masks → attend → project back.
A mechanism is what it does differently: it overrides `project_query`, `project_source`, `pieces`, `mix` or `output`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

import regard.core.attention as core
from regard import masks
from regard.core.arguments import alignment, whole_number
from regard.core.grid import lift
from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn import masking
from regard.nn.cache import Cache
from regard.nn.masks_in_steps import documents_of, from_query, over_all_keys, refuse_counting_from_the_end
from regard.nn.mechanism import Mechanism, check_inputs
from regard.nn.state import State, check_batch, of_kind


@dataclass
class View:
    """What a call comes down to, once the inputs are projected: who may look at what."""

    query: Tensor  # (b,h,q,d)
    key: Tensor  # (b,g,k,d), those from the state included
    value: Tensor  # (b,g,k,v)
    mask: Mask | None  # everything that hides: the layer's own mask, the caller's, remembered padding
    rows: Tensor  # (b,q,dim), the layer's queries before they were projected
    step: int  # how many queries the state has seen before the first of these
    cache: Cache | None  # the state after this call
    anchor: dict[str, Any] = field(
        default_factory=dict
    )  # align or offset of what counts distances: see `_anchor`


class Attention(Mechanism):
    """Queries attend to keys and values made from a source. The base of a family; not a mechanism itself."""

    fixed_options: ClassVar[tuple[str, ...]] = ()  # options of the parent that a preset decides itself

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        causal: bool = False,
        window: int | None = None,
        align: str = "bottom-right",
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        self.causal = causal
        self.window = None if window is None else whole_number("window", window, 1)
        if self.window is not None and not causal and self.window % 2 == 0:
            raise BadValue(
                f"window: {self.window} keys cannot lie evenly around a query; expected an odd number, for instance "
                f"{self.window - 1} or {self.window + 1} (or causal=True, where any number works)."
            )
        self.align = alignment(align)

    # What a mechanism may do differently.

    def project_query(self, query: Tensor, position: int) -> Tensor:
        """Queries (b,h,q,d) from rows (b,q,dim), the first of which stands at `position`."""
        return self.split(query)

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Keys (b,g,k,d) and values (b,g,k,v) from rows (b,k,source_dim), the first of which stands at `position`."""
        return self.split(source), self.split(source)

    def pieces(self, view: View) -> dict[str, Any]:
        """Score, mask, bias and normaliser, as `attend` and `weights` take them."""
        return {"mask": view.mask}

    def mix(self, view: View) -> Tensor:
        """The attended values, (b,h,q,v)."""
        mixed: Tensor = core.attend(
            view.query, view.key, view.value, dropout=self.weights_dropout, **self.pieces(view)
        )
        return mixed

    def output(self, mixed: Tensor) -> Tensor:
        """Rows (b,q,dim) from attended values (b,h,q,v)."""
        return mixed.transpose(1, 2).flatten(2)

    def cache_shape(self) -> tuple[int, int, int]:
        """Heads of the keys, their width and the width of the values."""
        return self.num_heads, self.head_dim, self.head_dim

    @property
    def places_queries(self) -> bool:
        """Whether the result depends on where in a source a query stands."""
        return self.causal or self.window is not None

    # What all of them do alike.

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """The attended queries, (b,q,dim); with a state also the state that follows."""
        view = self.view(query, source, mask, state)
        found = self.output(self.mix(view))
        return found if view.cache is None else (found, view.cache)

    def weights(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        rows: Any = None,
        heads: Any = None,
    ) -> Tensor:
        """The exact weights (b, heads, rows, k) with which a call would mix its values, before dropout."""
        view = self.view(query, source, mask, state)
        found: Tensor = core.weights(view.query, view.key, **self.pieces(view), rows=rows, heads=heads)
        return found

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Cache:
        """An empty cache. It grows with each call, or holds a source that was projected once (cross-attention)."""
        device, dtype = self.placement(device, dtype)
        heads, key_dim, value_dim = self.cache_shape()
        before = None if self.window is None or not self.causal else self.window - 1
        return Cache.empty(batch, heads, key_dim, value_dim, window=before, device=device, dtype=dtype)

    def split(self, rows: Tensor) -> Tensor:
        """(b,length,h·d) as (b,h,length,d)."""
        heads: Tensor = rows.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2)

    def view(
        self, query: Tensor, source: Tensor | None, mask: Mask | Tensor | None, state: State | None
    ) -> View:
        """Project the inputs, remember the keys and join the masks."""
        cache = self._checked(query, source, state)
        if source is not None or (cache is not None and cache.fixed):
            return self._cross(query, source, mask, cache)
        return self._within(query, mask, cache)

    def _within(self, rows: Tensor, mask: Mask | Tensor | None, cache: Cache | None) -> View:
        """Self-attention: the queries are the source, behind what the cache holds."""
        (batch, new, _), seen = rows.shape, 0 if cache is None else cache.seen
        sizes = (batch, self.num_heads, new, seen + new)
        given = masking.as_mask(mask, sizes)
        if cache is not None:
            given = from_query(given, cache.steps, sizes)
            given = over_all_keys(given, sizes, new, rows.device, cache.ids)
        if given is not None:
            given.check(sizes)
        if cache is not None and not (self.causal or masking.looks_back_only(given)):
            raise BadValue(
                "state: self-attention that looks ahead cannot go on from a state, because what it gave for earlier "
                "positions would change. Build the layer with causal=True, or pass mask=masks.causal()."
            )
        real = masking.real_sides(given, sizes, rows.device)[1]
        real = None if real is None else real[:, seen:].expand(batch, new)
        clean, spoilt = screened(rows, given is not None)
        queries = respoilt(self.project_query(clean, seen), _only(spoilt, real))
        keys, values = self.project_source(clean, seen)
        keys, values = respoilt(keys, spoilt), respoilt(values, spoilt)
        if cache is None:
            return View(queries, keys, values, masking.joined(self.own_mask(), given), rows, 0, None)
        step, cache = cache.steps, cache.extend(keys, values, real, documents_of(given, batch))
        own = None if self._sees_all(new, cache) else self.own_mask()
        if given is not None:
            given = masking.tail(given, sizes, sizes[3] - cache.keys.shape[2], rows.device)
        padding = None if cache.keep is None else PaddingMask(cache.keep)
        joined = masking.joined(own, given, padding)
        after = cache.cut().stepped(new)
        return View(queries, cache.keys, cache.values, joined, rows, step, after)

    def _sees_all(self, new: int, cache: Cache) -> bool:
        """Whether a causal step has nothing to hide: its one query stands at the end of all that its cache holds."""
        plain = new == 1 and self.causal and type(self).own_mask is Attention.own_mask
        return plain and (self.window is None or cache.keys.shape[2] <= self.window)

    def _cross(
        self, rows: Tensor, source: Tensor | None, mask: Mask | Tensor | None, cache: Cache | None
    ) -> View:
        """Attention to a source, which a cache projects once and remembers."""
        length = source.shape[1] if source is not None else 0
        if cache is not None and cache.fixed:
            length = cache.keys.shape[2]
        sizes = (rows.shape[0], self.num_heads, rows.shape[1], length)
        given = masking.as_mask(mask, sizes)
        if cache is not None:
            refuse_counting_from_the_end(given)
            given = from_query(given, cache.steps, sizes)
        if given is not None:
            given.check(sizes)
        anchor = self._anchor(cache)
        own = self.own_mask(**anchor)
        guarded = given is not None or own is not None
        clean, spoilt = screened(rows, guarded)
        position = lift(anchor.get("align", ""), anchor.get("offset"), sizes[2], length)
        queries = respoilt(self.project_query(clean, position), spoilt)
        if cache is None or not cache.fixed:
            assert source is not None
            clean, spoilt = screened(source, guarded)
            keys, values = self.project_source(clean, 0)
            keys, values = respoilt(keys, spoilt), respoilt(values, spoilt)
        else:
            keys, values = cache.keys, cache.values
        if cache is None:
            return View(queries, keys, values, masking.joined(own, given), rows, 0, None, anchor)
        step = cache.steps
        if not cache.fixed:
            real = masking.real_sides(given, sizes, rows.device)[1]
            cache = cache.fix(keys, values, None if real is None else real.expand(sizes[0], length))
        padding = None if cache.keep is None else PaddingMask(cache.keep)
        joined = masking.joined(own, given, padding)
        return View(queries, keys, values, joined, rows, step, cache.stepped(sizes[2]), anchor)

    def own_mask(self, **anchor: Any) -> Mask | None:
        """What the layer itself hides; `anchor` says where the queries stand, as masks take it."""
        if self.window is None:
            return masks.causal(**anchor) if self.causal else None
        before, after = (self.window - 1, 0) if self.causal else (self.window // 2, None)
        return masks.window(before, after, **anchor)

    def _anchor(self, cache: Cache | None) -> dict[str, Any]:
        """Where queries over a source stand, as masks, biases and scores take it: at its end, or from its beginning on.

        With a state, the queries that came before count.
        """
        if cache is None or not self.places_queries:
            return {"align": self.align}
        if self.align != "top-left":
            raise BadValue(
                "state: this layer's window, causal mask or positions count from a source's end, and step by step it "
                "is not known where that is. Build the layer with align='top-left' to go through a source in steps."
            )
        return {"offset": cache.steps}

    def _checked(self, query: Tensor, source: Tensor | None, state: State | None) -> Cache | None:
        """The state as a cache, after every check of what came."""
        cache = of_kind(Cache, state)
        remembered = cache is not None and cache.fixed
        check_inputs(self, query, source, remembered)
        if cache is None:
            return None
        check_batch(cache.keys, query)
        if source is not None and remembered and source.shape[1] != cache.keys.shape[2]:
            raise BadValue(
                f"source: the state remembers one of length {cache.keys.shape[2]}, got {source.shape[1]}. A new source "
                f"needs a new initial_state()."
            )
        if source is not None and not remembered and cache.seen:
            raise BadValue(
                "source: this state has grown by self-attention. Cross-attention needs a state of its own: take "
                "another initial_state()."
            )
        return cache


def screened(rows: Tensor, guarded: bool) -> tuple[Tensor, Tensor | None]:
    """Rows in which those that are not finite are zero, and which they were, (b,length).

    A hidden row may hold NaN. Masks keep it out of the result, but 0 · NaN would still reach the gradient of the
    weights it is projected with.
    """
    if not guarded:
        return rows, None
    spoilt = ~rows.detach().isfinite().all(-1)
    return rows.masked_fill(spoilt[..., None], 0), spoilt


def respoilt(heads: Tensor, spoilt: Tensor | None) -> Tensor:
    """Projected rows (b,h,length,d) in which the spoilt ones are NaN again: where they are seen, they must show."""
    return heads if spoilt is None else heads.masked_fill(spoilt[:, None, :, None], torch.nan)


def _only(spoilt: Tensor | None, real: Tensor | None) -> Tensor | None:
    """Of the spoilt rows, the real ones: padding is nobody's query."""
    return spoilt if spoilt is None or real is None else spoilt & real
