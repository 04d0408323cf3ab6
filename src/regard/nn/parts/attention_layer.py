"""The base class of `global-layer` and `local-layer`: attention to the own sequence, then to a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from regard import masks
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn.key_value_memory import KeyValueMemory
from regard.nn.parts import masking
from regard.nn.parts.blocks import Residual, called
from regard.nn.parts.cache import Cache
from regard.nn.parts.masks_in_steps import from_query, over_all_keys, refuse_counting_from_the_end
from regard.nn.parts.mechanism import Mechanism, check_inputs
from regard.nn.parts.state import AnyState, State, of_kind
from regard.nn.query_key_memory import QueryKeyMemory
from regard.values.grid import Sizes


class HistoryAttention(QueryKeyMemory):
    """`query-key-memory` that sees all of a source, but is causal where the source is its own sequence."""

    def __init__(self, dim: int, num_heads: int, dropout: float, source_dim: int | None, **options: Any) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)  # raises for an even window
        self.causal = True

    def own_mask(self, **anchor: Any) -> Mask | None:
        if not anchor:  # self-attention: only cross-attention passes an anchor
            return super().own_mask()
        return None if self.window is None else masks.window(self.window // 2, **anchor)

    @property
    def places_queries(self) -> bool:
        return self.window is not None


@dataclass(frozen=True)
class LayerState(State):
    """The state of an attention layer: the cache of its own sequence, and that of the source."""

    memory: Cache
    history: Cache


class AttentionLayer(Mechanism):
    """Key-value memory, then query-key memory, each with residual and normalisation. A base class."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        norm: str = "pre",
        residual: bool = True,
        window: int | None = None,
        align: str = "bottom-right",
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        self.window = window
        self.memory = KeyValueMemory(dim, num_heads, dropout, window=window)
        self.history = HistoryAttention(dim, num_heads, dropout, source_dim, window=window, align=align)
        self.around_memory = Residual(dim, norm, self.dropout, residual=residual)
        self.around_history = Residual(dim, norm, self.dropout, residual=residual)

    if TYPE_CHECKING:

        @overload
        def __call__(
            self,
            query: Tensor,
            source: Tensor | None = None,
            *,
            mask: Mask | Tensor | None = None,
            state: None = None,
            query_mask: Mask | Tensor | None = None,
        ) -> Tensor: ...
        @overload
        def __call__(
            self,
            query: Tensor,
            source: Tensor | None = None,
            *,
            mask: Mask | Tensor | None = None,
            state: AnyState,
            query_mask: Mask | Tensor | None = None,
        ) -> tuple[Tensor, AnyState]: ...
        def __call__(self, *args: Any, **options: Any) -> Any: ...

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        query_mask: Mask | Tensor | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return the queries after both parts, (b,q,dim); with a state, also the next state.

        `mask` applies to the source, or to the sequence itself where no source is given. `query_mask` always applies
        to the sequence.
        """
        state = of_kind(LayerState, state)
        remembered = state is not None and state.history.fixed
        check_inputs(self, query, source, remembered)
        (batch, new, _), past_length = query.shape, 0 if state is None else state.memory.seen
        sizes = (batch, self.num_heads, new, past_length + new)
        memory, history = (None, None) if state is None else (state.memory, state.history)
        if source is None and not remembered:
            both = masking.joined(masking.as_mask(query_mask, sizes), masking.as_mask(mask, sizes))
            own_mask = mask = _over_sequence(both, sizes, memory, query.device)
        else:
            own_mask = _over_sequence(masking.as_mask(query_mask, sizes), sizes, memory, query.device)
            length = source.shape[1] if source is not None else state.history.seen  # type: ignore[union-attr]
            mask, hidden = _over_source(mask, (*sizes[:3], length), history, query.device)
            if hidden is not None:
                own_mask = masking.joined(
                    own_mask, PaddingMask(torch.cat([hidden.new_ones(batch, past_length), hidden], 1))
                )
        # Normalisation and residual connection read every row, so padding must be zeroed before the first of them.
        real = masking.real_sides(own_mask, sizes, query.device)[1]
        rows = query if real is None else masking.without_padding(query, real[:, past_length:])
        mixed, written = called(self.memory, self.around_memory.enter(rows), None, own_mask, memory)
        rows = self.around_memory.leave(rows, mixed)
        mixed, read = called(self.history, self.around_history.enter(rows), source, mask, history)
        rows = self.around_history.leave(rows, mixed)
        return rows if state is None else (rows, LayerState(written, read))  # type: ignore[arg-type]

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> LayerState:
        """Return two empty caches."""
        return LayerState(
            self.memory.initial_state(batch, device, dtype), self.history.initial_state(batch, device, dtype)
        )


def _over_sequence(given: Mask | None, sizes: Sizes, memory: Cache | None, device: torch.device) -> Mask | None:
    """Extend a mask over the layer's own sequence to the positions of earlier calls, and check it."""
    if memory is not None:
        given = from_query(given, memory.steps, sizes)
        given = over_all_keys(given, sizes, sizes[2], device, memory.ids)
    if given is not None:
        given.check(sizes)
    return given


def _over_source(
    mask: Mask | Tensor | None, sizes: Sizes, history: Cache | None, device: torch.device
) -> tuple[Mask | None, Tensor | None]:
    """Return the mask over the source, and which queries (b,q) are not padding according to it; None: all."""
    call_mask = masking.as_mask(mask, sizes)
    if history is not None:
        refuse_counting_from_the_end(call_mask)
        call_mask = from_query(call_mask, history.steps, sizes)
    if call_mask is None:
        return None, None
    call_mask.check(sizes)
    real = masking.real_sides(call_mask, sizes, device)[0]
    return call_mask, None if real is None else real.expand(sizes[0], sizes[2])
