"""`static-memory`: a sequence is summarised once into a few slots, which all queries read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn.multihead import Multihead
from regard.nn.parts import masking
from regard.nn.parts.mechanism import Mechanism, check_inputs, mechanism
from regard.nn.parts.state import State, check_batch, of_kind
from regard.support.arguments import whole_number


@dataclass(frozen=True, kw_only=True)
class MemoryState(State):
    """The contents of the slots, and what was written to them."""

    memory: Tensor  # (b,m,dim)
    written: bool = False  # whether the memory is complete, so that calls only read it
    source: int | None = None  # length of the source that was written; None: the queries are written
    seen: int = 0  # number of queries so far


Kind = TypeVar("Kind", bound=MemoryState)


@mechanism("static-memory", causal="no", time="n·m·d", memory="(n + m)·d", slots=3)
class StaticMemory(Mechanism):
    """m learned slots attend once to the whole sequence; their outputs are a memory to which every query attends.

        M = norm(S + multihead(S, source)),   o_i = multihead(q_i, M),   S (m,dim) learned

    Without a source the queries themselves are summarised. With a state, the first call writes the memory and later
    calls only read it. Masks must ignore the query.

    Paper: Lee et al. 2019, equations 9 and 10 (induced attention, here without feed-forward parts); memory slots in
    Transformers: Burtsev et al. 2020.
    Empty row: for a source that is all padding, the memory depends on the slots and biases only; it is read like any
    other.
    When to use: in encoders of long sequences of which a fixed number of summaries is enough: the cost is linear in
    the length.

    Args:
        dim: width of queries and outputs, and of a slot.
        num_heads: number of heads that share that width, for writing and for reading.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        slots: number of slots of the memory.

    >>> import torch, regard
    >>> layer = regard.nn.build("static-memory", dim=16, num_heads=2, slots=4)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None, *, slots: int = 16
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        self.slots = nn.Parameter(torch.randn(whole_number("slots", slots, 1), self.dim))
        self.writer = Multihead(dim, num_heads, dropout, source_dim)
        self.norm = nn.LayerNorm(self.dim)
        self.reader = Multihead(dim, num_heads, dropout)

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return what the queries read from the memory, (b,q,dim); with a state, also the next state."""
        before = checked_state(self, MemoryState, query, source, state)
        (batch, new, _), past_length = query.shape, 0 if before is None else before.seen
        keep = None
        if source is None and (before is None or before.source is None):  # the queries are summarised
            keep = masking.kept(mask, batch, new, new, past_length, query.device)
            query = masking.without_padding(query, keep)
        if before is None or not before.written:
            if source is not None:
                keep = masking.kept(mask, batch, new, source.shape[1], 0, query.device)
            memory = self.write(query if source is None else source, keep)
        else:
            memory = before.memory
        output: Tensor = self.reader(query, memory)
        if before is None:
            return output
        length = before.source if source is None else source.shape[1]
        return output, replace(before, memory=memory, written=True, source=length, seen=past_length + new)

    def write(self, source: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the memory (b,m,dim) of a source (b,k,source_dim); `keep` (b,k) is False for padding."""
        slots = self.slots.expand(source.shape[0], -1, -1)
        mask = None if keep is None else PaddingMask(keep)
        memory: Tensor = self.norm(slots + self.writer(slots, masking.without_padding(source, keep), mask=mask))
        return memory

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> MemoryState:
        """Return a memory that has not been written yet."""
        device, dtype = self.placement(device, dtype)
        return MemoryState(memory=torch.zeros(batch, *self.slots.shape, device=device, dtype=dtype))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, slots={len(self.slots)}"


def checked_state(
    layer: Mechanism, kind: type[Kind], query: Tensor, source: Tensor | None, state: State | None
) -> Kind | None:
    """Check the inputs of a layer with slots and return its state."""
    past = of_kind(kind, state)
    check_inputs(layer, query, source, remembered=past is not None and past.source is not None)
    if past is None:
        return None
    check_batch(past.memory, query)
    is_written = past.written or past.seen > 0
    if source is not None and is_written and source.shape[1] != past.source:
        words = "was written by the queries" if past.source is None else f"holds a source of length {past.source}"
        raise BadValue(
            f"source: the memory of this state {words}, got a source of length {source.shape[1]}. A new source needs a "
            f"new initial_state()."
        )
    return past
