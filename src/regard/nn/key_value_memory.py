"""`key-value-memory`: earlier elements are a memory of keys and values for later ones."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn.multihead import Multihead
from regard.nn.parts import masking
from regard.nn.parts.attention import AttentionInputs
from regard.nn.parts.cache import Cache
from regard.nn.parts.masks_in_steps import from_query, refuse_counting_from_the_end
from regard.nn.parts.mechanism import check_inputs, mechanism
from regard.nn.parts.nonfinite import restore_nonfinite, zero_nonfinite
from regard.nn.parts.state import State
from regard.support.arguments import whole_number
from regard.values.grid import Grid, Sizes


@mechanism("key-value-memory", causal="yes", time="n²·d / 2", memory="n·d")
class KeyValueMemory(Multihead):
    """Every element writes a key and a value, and reads what it and earlier elements have written.

        o_i = Σ_{j ≤ i} softmax_{j ≤ i}(q_i·k_j / √d) v_j,   over the sequence [source; query]

    A source is a memory that precedes the queries, so that they see all of it. A mask then applies to the source;
    queries that it hides (`query_keep`) are not written either.

    Paper: Vaswani et al. 2017, section 3.2.3 (masked self-attention); Miller et al. 2016, section 3.1 (key-value
    memories).
    Empty row: none, because an element sees itself; with a mask that hides every key, the row is the bias of the output
    projection.
    When to use: for self-attention over what was written so far, with a source in front of it: a prompt, a context,
    an earlier segment.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; where it differs from dim, the source is mapped to dim first.
        window: number of elements that one sees, including itself; None: all earlier ones.

    >>> import torch, regard
    >>> layer = regard.nn.build("key-value-memory", dim=16, num_heads=2)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("causal", "align")

    def __init__(
        self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, dropout, causal=True, **options)
        self.source_map: nn.Linear | None = None
        if source_dim is not None and source_dim != dim:
            self.source_dim = whole_number("source_dim", source_dim, 1)
            self.source_map = nn.Linear(self.source_dim, self.dim)

    def prepare(
        self, query: Tensor, source: Tensor | None, mask: Mask | Tensor | None, state: State | None
    ) -> AttentionInputs:
        cache = self._checked(query, source, state)
        if source is None:
            return self._within(query, mask, cache)
        sizes = (query.shape[0], self.num_heads, query.shape[1], source.shape[1])
        call_mask = masking.as_mask(mask, sizes)
        if cache is not None:
            refuse_counting_from_the_end(call_mask)
            call_mask = from_query(call_mask, cache.steps, sizes)
        if call_mask is not None:
            call_mask.check(sizes)
        before = self.initial_state(sizes[0], query.device, query.dtype) if cache is None else cache
        if not before.seen:
            before = self._primed(before, source, call_mask)
        inputs = self._within(query, _over_source(call_mask, sizes, before.seen, query.device), before)
        return inputs if cache is not None else replace(inputs, cache=None)

    def _primed(self, cache: Cache, source: Tensor, given: Mask | None) -> Cache:
        """Return an empty cache with the keys and values of the source added."""
        batch, length, _ = source.shape
        clean, nonfinite = zero_nonfinite(source, given is not None or self.window is not None)
        clean = clean if self.source_map is None else self.source_map(clean)
        keys, values = self.project_source(clean, 0)
        real = masking.real_sides(given, (batch, self.num_heads, 0, length), source.device)[1]
        return replace(
            cache,
            keys=restore_nonfinite(keys, nonfinite),
            values=restore_nonfinite(values, nonfinite),
            seen=length,
            keep=None if real is None else real.expand(batch, length),
        )

    def _checked(self, query: Tensor, source: Tensor | None, state: State | None) -> Cache | None:
        """Check the inputs and return the cache. A state that holds a source accepts the same source again."""
        if not isinstance(state, Cache) or not state.seen:
            return super()._checked(query, source, state)
        check_inputs(self, query, source, remembered=True)
        keys = state.seen - state.steps  # keys without a query: those of the source
        if source is not None and source.shape[1] != keys:
            raise BadValue(
                f"source: the state {f'holds a source of length {keys}' if keys else 'has no source'}, got a source of "
                f"length {source.shape[1]}. A new source needs a new initial_state()."
            )
        super()._checked(query, None, replace(state, fixed=True))  # the remaining checks, without the source
        return state


class SourceMask(Mask):
    """A pairwise mask over the first `length` keys, those of a source; all later keys are visible."""

    inner: Mask
    length: int

    def visible(self, grid: Grid) -> Tensor:
        if self.length == 0:
            return torch.ones((), dtype=torch.bool, device=grid.device)
        columns = grid.column.clamp(max=self.length - 1)
        sizes = (*grid.sizes[:3], self.length)
        source = replace(grid, sizes=sizes, column=columns, parts=(*grid.parts[:3], columns))
        return self.inner.visible(source) | (grid.column >= self.length)

    def check(self, sizes: Sizes) -> None:
        self.inner.check((*sizes[:3], self.length))


def _over_source(given: Mask | None, sizes: Sizes, seen: int, device: torch.device) -> Mask | None:
    """Extend a mask over a source to all `seen` keys and the keys of the queries, except hidden queries."""
    if given is None:
        return None
    batch, _, queries, length = sizes
    if given.by_key:  # as a tensor, so that compiled code serves every length
        real = given.real_keys(length, batch, device).expand(batch, length)
        return PaddingMask(torch.cat([real, real.new_ones(batch, seen - length + queries)], 1))
    over, hidden = SourceMask(given, operator.index(length)), masking.real_sides(given, sizes, device)[0]
    if hidden is None:
        return over
    real = hidden.expand(batch, queries)
    return over & PaddingMask(torch.cat([real.new_ones(batch, seen), real], 1))
