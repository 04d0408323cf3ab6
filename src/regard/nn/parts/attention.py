"""The base class of every mechanism that projects its inputs and calls `attend`.

A call does: check inputs → project queries and source → extend the cache (with a state) → join masks → attend →
project the result. A mechanism overrides the steps in which it differs: `project_query`, `project_source`, `pieces`,
`mix` or `output`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard import masks
from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn import sharing
from regard.nn.parts import masking
from regard.nn.parts.cache import Cache
from regard.nn.parts.heads import join_heads, split_heads
from regard.nn.parts.masks_in_steps import documents_of, from_query, over_all_keys, refuse_counting_from_the_end
from regard.nn.parts.mechanism import Mechanism, check_inputs
from regard.nn.parts.nonfinite import restore_nonfinite, zero_nonfinite
from regard.nn.parts.state import State, check_batch, of_kind
from regard.support.arguments import alignment, whole_number
from regard.values.grid import position_shift


@dataclass
class AttentionInputs:
    """The projected inputs of one call, ready for `attend`."""

    query: Tensor  # (b,h,q,d)
    key: Tensor  # (b,g,k,d), including those of the cache
    value: Tensor  # (b,g,k,v)
    mask: Mask | None  # the masks of the layer, of the caller and of the cache, joined
    rows: Tensor  # (b,q,dim), the queries before projection
    step: int  # number of queries in earlier calls with this state
    cache: Cache | None  # the next state; None for a call without state
    anchor: dict[str, Any] = field(default_factory=dict)  # align or offset of masks, biases and scores: see `_anchor`


class Attention(Mechanism):
    """Queries attend to keys and values that are projected from a source. A base class, not a mechanism."""

    fixed_options: ClassVar[tuple[str, ...]] = ()  # options of the base class that a preset fixes

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

    # Steps that a mechanism may override.

    def project_query(self, query: Tensor, position: int) -> Tensor:
        """Project rows (b,q,dim), the first at `position`, to queries (b,h,q,d)."""
        return self.split(query)

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Project rows (b,k,source_dim), the first at `position`, to keys (b,g,k,d) and values (b,g,k,v)."""
        return self.split(source), self.split(source)

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        """Return the keyword arguments of `attend` and `weights`: score, mask, bias and normaliser."""
        return {"mask": inputs.mask}

    def mix(self, inputs: AttentionInputs) -> Tensor:
        """Return the attended values, (b,h,q,v)."""
        shared = sharing.current()
        rows, options = (inputs.query, inputs.key, inputs.value), self.pieces(inputs)
        mixed: Tensor
        if shared is None:
            mixed = dispatch.attend(*rows, dropout=self.weights_dropout, **options)
        else:
            mixed = shared.sequence.attend(*rows, exchange=shared.exchange, dropout=self.weights_dropout, **options)
        return mixed

    def output(self, mixed: Tensor) -> Tensor:
        """Turn attended values (b,h,q,v) into rows (b,q,dim)."""
        return join_heads(mixed)

    def cache_shape(self) -> tuple[int, int, int]:
        """Return the number of key heads, the width of a key and the width of a value."""
        return self.num_heads, self.head_dim, self.head_dim

    @property
    def places_queries(self) -> bool:
        """Whether the result depends on the position of a query in its source."""
        return self.causal or self.window is not None

    # Steps that all mechanisms share.

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        inputs = self.prepare(query, source, mask, state)
        output = self.output(self.mix(inputs))
        return output if inputs.cache is None else (output, inputs.cache)

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
        """Return the exact attention weights (b, heads, rows, k) of a call, before dropout."""
        inputs = self.prepare(query, source, mask, state)
        weights: Tensor = dispatch.weights(inputs.query, inputs.key, **self.pieces(inputs), rows=rows, heads=heads)
        return weights

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Cache:
        """Return an empty cache. Self-attention extends it with each call; cross-attention projects the source once."""
        device, dtype = self.placement(device, dtype)
        heads, key_dim, value_dim = self.cache_shape()
        before = None if self.window is None or not self.causal else self.window - 1
        return Cache.empty(batch, heads, key_dim, value_dim, window=before, device=device, dtype=dtype)

    def split(self, rows: Tensor) -> Tensor:
        """View rows (b,length,h·d) as heads (b,h,length,d)."""
        return split_heads(rows, self.head_dim)

    def prepare(
        self, query: Tensor, source: Tensor | None, mask: Mask | Tensor | None, state: State | None
    ) -> AttentionInputs:
        """Check and project the inputs, extend the cache and join the masks."""
        cache = self._checked(query, source, state)
        if (shared := sharing.current()) is not None:
            return self._shared(query, mask, cache, shared)
        if source is not None or (cache is not None and cache.fixed):
            return self._cross(query, source, mask, cache)
        return self._within(query, mask, cache)

    def _within(self, rows: Tensor, mask: Mask | Tensor | None, cache: Cache | None) -> AttentionInputs:
        """Prepare self-attention: the queries are also the source, after the keys of the cache."""
        (batch, new, _), past_length = rows.shape, 0 if cache is None else cache.seen
        sizes = (batch, self.num_heads, new, past_length + new)
        call_mask = masking.as_mask(mask, sizes)
        if cache is not None:
            call_mask = from_query(call_mask, cache.steps, sizes)
            call_mask = over_all_keys(call_mask, sizes, new, rows.device, cache.ids)
        if call_mask is not None:
            call_mask.check(sizes)
        if cache is not None and not (self.causal or masking.looks_back_only(call_mask)):
            raise BadValue(
                "state: self-attention that sees later positions cannot continue from a state, because the outputs for "
                "earlier positions would change. Build the layer with causal=True, or pass mask=masks.causal()."
            )
        real = masking.real_sides(call_mask, sizes, rows.device)[1]
        real = None if real is None else real[:, past_length:].expand(batch, new)
        clean, nonfinite = zero_nonfinite(rows, call_mask is not None)
        # In self-attention a padded key is also a padded query.
        queries = restore_nonfinite(self.project_query(clean, past_length), nonfinite, real)
        keys, values = self.project_source(clean, past_length)
        keys, values = restore_nonfinite(keys, nonfinite), restore_nonfinite(values, nonfinite)
        if cache is None:
            return AttentionInputs(queries, keys, values, masking.joined(self.own_mask(), call_mask), rows, 0, None)
        step, cache = cache.steps, cache.extend(keys, values, real, documents_of(call_mask, batch))
        layer_mask = None if self._sees_all(new, cache) else self.own_mask()
        if call_mask is not None:
            call_mask = masking.tail(call_mask, sizes, sizes[3] - cache.keys.shape[2], rows.device)
        padding = None if cache.keep is None else PaddingMask(cache.keep)
        joined = masking.joined(layer_mask, call_mask, padding)
        after = cache.cut().stepped(new)
        return AttentionInputs(queries, cache.keys, cache.values, joined, rows, step, after)

    def _shared(
        self, rows: Tensor, mask: Mask | Tensor | None, cache: Cache | None, shared: sharing.Sharing
    ) -> AttentionInputs:
        """Prepare self-attention of one rank's rows in a shared sequence; masks are those of the whole sequence."""
        if cache is not None:
            raise BadValue("state: a sequence that several ranks share is read at once, without a state.")
        length = shared.sequence.length
        sizes = (rows.shape[0], self.num_heads, length, length)
        call_mask = masking.joined(shared.mask, masking.as_mask(mask, sizes))
        clean, nonfinite = zero_nonfinite(rows, call_mask is not None)
        queries = restore_nonfinite(self.project_query(clean, 0), nonfinite)
        keys, values = (restore_nonfinite(tensor, nonfinite) for tensor in self.project_source(clean, 0))
        return AttentionInputs(queries, keys, values, masking.joined(self.own_mask(), call_mask), rows, 0, None)

    def _sees_all(self, new: int, cache: Cache) -> bool:
        """Whether a causal step of one query needs no mask, because every key of the cache is visible to it."""
        plain = new == 1 and self.causal and type(self).own_mask is Attention.own_mask
        return plain and (self.window is None or cache.keys.shape[2] <= self.window)

    def _cross(
        self, rows: Tensor, source: Tensor | None, mask: Mask | Tensor | None, cache: Cache | None
    ) -> AttentionInputs:
        """Prepare cross-attention. With a state, the first call projects the source, and later calls read the cache."""
        length = source.shape[1] if source is not None else 0
        if cache is not None and cache.fixed:
            length = cache.keys.shape[2]
        sizes = (rows.shape[0], self.num_heads, rows.shape[1], length)
        call_mask = masking.as_mask(mask, sizes)
        if cache is not None:
            refuse_counting_from_the_end(call_mask)
            call_mask = from_query(call_mask, cache.steps, sizes)
        if call_mask is not None:
            call_mask.check(sizes)
        anchor = self._anchor(cache)
        layer_mask = self.own_mask(**anchor)
        guarded = call_mask is not None or layer_mask is not None
        clean, nonfinite = zero_nonfinite(rows, guarded)
        position = position_shift(anchor.get("align", ""), anchor.get("offset"), sizes[2], length)
        queries = restore_nonfinite(self.project_query(clean, position), nonfinite)
        if cache is None or not cache.fixed:
            assert source is not None
            clean, nonfinite = zero_nonfinite(source, guarded)
            keys, values = self.project_source(clean, 0)
            keys, values = restore_nonfinite(keys, nonfinite), restore_nonfinite(values, nonfinite)
        else:
            keys, values = cache.keys, cache.values
        if cache is None:
            return AttentionInputs(queries, keys, values, masking.joined(layer_mask, call_mask), rows, 0, None, anchor)
        step = cache.steps
        if not cache.fixed:
            real = masking.real_sides(call_mask, sizes, rows.device)[1]
            cache = cache.fix(keys, values, None if real is None else real.expand(sizes[0], length))
        padding = None if cache.keep is None else PaddingMask(cache.keep)
        joined = masking.joined(layer_mask, call_mask, padding)
        return AttentionInputs(queries, keys, values, joined, rows, step, cache.stepped(sizes[2]), anchor)

    def own_mask(self, **anchor: Any) -> Mask | None:
        """Return the mask of the layer itself. `anchor` is the align or offset argument of the mask."""
        if self.window is None:
            return masks.causal(**anchor) if self.causal else None
        before, after = (self.window - 1, 0) if self.causal else (self.window // 2, None)
        return masks.window(before, after, **anchor)

    def _anchor(self, cache: Cache | None) -> dict[str, Any]:
        """The position of the queries in a source, as an align or offset argument of masks, biases and scores.

        With a state, the offset is the number of earlier queries.
        """
        if cache is None or not self.places_queries:
            return {"align": self.align}
        if self.align != "top-left":
            raise BadValue(
                "state: this layer aligns its window, causal mask or positions with the end of the source, but a step "
                "does not know how many queries will follow. Build the layer with align='top-left' to decode in steps."
            )
        return {"offset": cache.steps}

    def _checked(self, query: Tensor, source: Tensor | None, state: State | None) -> Cache | None:
        """Check the inputs and return the state as a cache."""
        cache = of_kind(Cache, state)
        remembered = cache is not None and cache.fixed
        check_inputs(self, query, source, remembered)
        if cache is None:
            return None
        check_batch(cache.keys, query)
        if source is not None and remembered and source.shape[1] != cache.keys.shape[2]:
            raise BadValue(
                f"source: the state holds a source of length {cache.keys.shape[2]}, got length {source.shape[1]}. A "
                f"new source needs a new initial_state()."
            )
        if source is not None and not remembered and cache.seen:
            raise BadValue(
                "source: this state was extended by self-attention. Cross-attention needs a state of its own: take "
                "another initial_state()."
            )
        return cache
