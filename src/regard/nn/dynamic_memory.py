"""`dynamic-memory`: a memory of slots that is rewritten, segment by segment, while a sequence is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import regard.core.attention as core
from regard import masks
from regard.core.arguments import whole_number
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn import masking
from regard.nn.attention import screened
from regard.nn.mechanism import Mechanism, mechanism
from regard.nn.multihead import Multihead
from regard.nn.state import State
from regard.nn.static_memory import MemoryState, checked_state

_FEW = 16  # keys


@dataclass(frozen=True, kw_only=True)
class DynamicState(MemoryState):
    """The memory after the last complete segment, and the elements of the one that is still open."""

    open: Tensor  # (b,segment,dim), the elements from the left, zeros behind them
    count: Tensor  # (b,), how many there are: fewer than a segment


@mechanism("dynamic-memory", causal="yes", time="n·(m + s)·d", memory="n·(1 + m/s)·d", slots=3, segment=2)
class DynamicMemory(Mechanism):
    """An element attends to a memory and to its segment so far; each complete segment rewrites the memory by a gate.

        o_i = multihead(x_i, [M_{s−1}; x_j, j ≤ i in segment s]),   M_s = GRU(multihead(M_{s−1}, segment s), M_{s−1})

    The gated recurrent unit sees each slot as a hidden state: M_s = (1 − z) ⊙ n + z ⊙ M_{s−1}. M_0 is learned. Segments
    count real positions only: padding neither writes nor advances, and gets zeros. A segment that is not complete waits
    for later calls with the state. Masks must ignore the query.

    Over a source it is another formula: the source is read through first and written segment by segment, the last short
    one too; then every query attends to the final memory, and the queries write nothing.

    Paper: Hutchins et al. 2022, section 3 (a recurrent, gated memory for each block); Bulatov et al. 2022, section 3
    (segments and memory); Cho et al. 2014, equations 5 to 8 (the gate).
    Empty row: memory and own element are always seen, so none is empty; over a source of which nothing is real the
    memory stays M_0.

    Args:
        dim: width of queries and outputs, and of a slot.
        num_heads: how many heads share that width, in writing and in reading.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source; where it differs from dim, the source is mapped to dim first.
        slots: how many slots the memory has.
        segment: after how many elements the memory is rewritten; 1: after each.

    >>> import torch, regard
    >>> layer, x = regard.nn.build("dynamic-memory", dim=16, slots=4, segment=3), torch.randn(1, 7, 16)
    >>> step, state = layer(x[:, :4], state=layer.initial_state(batch=1))
    >>> torch.allclose(step, layer(x)[:, :4], atol=1e-6)
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        slots: int = 16,
        segment: int = 16,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        self.segment = whole_number("segment", segment, 1)
        self.slots = nn.Parameter(torch.randn(whole_number("slots", slots, 1), self.dim))
        self.source_map = nn.Linear(self.source_dim, self.dim) if self.source_dim != self.dim else None
        self.writer = Multihead(dim, num_heads, dropout)
        self.gate = nn.GRUCell(self.dim, self.dim)
        self.reader = Multihead(dim, num_heads, dropout)

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """What the queries read, (b,q,dim); with a state also the state that follows."""
        before = checked_state(self, DynamicState, query, source, state)
        if source is None and (before is None or before.source is None):
            return self._within(query, mask, before)
        if before is None or not before.written:
            assert source is not None
            memory = self._summary(source, mask, query.shape[1], before)
        else:
            memory = before.memory
        found: Tensor = self.reader(query, memory)
        if before is None:
            return found
        length = before.source if source is None else source.shape[1]
        seen = before.seen + query.shape[1]
        return found, replace(before, memory=memory, written=True, source=length, seen=seen)

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> DynamicState:
        """The learned slots, and a segment without elements."""
        device, dtype = self.placement(device, dtype)
        return DynamicState(
            memory=self.slots.to(device=device, dtype=dtype).expand(batch, -1, -1),
            open=torch.zeros(batch, self.segment, self.dim, device=device, dtype=dtype),
            count=torch.zeros(batch, dtype=torch.int64, device=device),
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, slots={len(self.slots)}, segment={self.segment}"

    def _within(
        self, query: Tensor, mask: Mask | Tensor | None, state: DynamicState | None
    ) -> Tensor | tuple[Tensor, State]:
        """The queries read, and write behind themselves."""
        (batch, new, _), seen = query.shape, 0 if state is None else state.seen
        keep = masking.kept(mask, batch, new, new, seen, query.device)
        rows = masking.without_padding(query, keep)
        # Fewer elements than a segment wait in the state; with them, `new` ones reach at most so far.
        segments = max(1, self._segments(new if state is None else new + self.segment - 1))
        width = segments * self.segment
        if state is None and keep is None:  # every element stands where it belongs
            line, spoilt = screened(pad(rows, (0, 0, 0, width - new)), True)
            memories = self._written(self._slots(batch), line, segments - 1)
            return _shown(self._read(memories, line), spoilt)[:, :new]
        before = self.initial_state(batch, query.device, query.dtype) if state is None else state
        line, place, total = _compact(rows, keep, width, before)
        clean, spoilt = screened(line, True)
        complete = total[:, None] >= torch.arange(1, segments + 1, device=query.device) * self.segment
        # What the last segment writes, only a later call will read.
        memories = self._written(before.memory, clean, segments - 1 if state is None else segments, complete)
        found = _shown(self._read(memories[:segments], clean[:, :width]), spoilt)
        found = _picked(pad(found, (0, 0, 0, 1)), place)  # padding takes the zeros behind the last row
        if state is None:
            return found
        count = total % self.segment
        rest = (total - count)[:, None] + torch.arange(self.segment, device=query.device)
        still = _picked(line, rest.clamp(max=width))
        assert spoilt is not None
        lost = (spoilt & (torch.arange(width + 1, device=query.device) < rest[:, :1])).any(1)
        memory = memories[-1].masked_fill(lost[:, None, None], torch.nan)
        return found, replace(state, memory=memory, open=still, count=count, seen=seen + new)

    def _summary(
        self, source: Tensor, mask: Mask | Tensor | None, queries: int, state: DynamicState | None
    ) -> Tensor:
        """The memory (b,m,dim) after all of a source, its last short segment included."""
        batch, length, _ = source.shape
        keep = masking.kept(mask, batch, queries, length, 0, source.device)
        rows = masking.without_padding(source, keep)
        rows = rows if self.source_map is None else self.source_map(rows)
        memory = self._slots(batch) if state is None else state.memory
        segments = self._segments(length)
        if keep is None:
            return self._written(memory, rows, segments)[-1]
        line, _, total = _compact(rows, keep, segments * self.segment)
        position = torch.arange(segments * self.segment, device=source.device)
        real = position < total[:, None]
        return self._written(memory, line, segments, real[:, :: self.segment], real)[-1]

    def _written(
        self,
        memory: Tensor,
        rows: Tensor,
        segments: int,
        writes: Tensor | None = None,
        real: Tensor | None = None,
    ) -> list[Tensor]:
        """The memory before each of the first `segments` segments of rows (b,length,dim), and after the last of them.

        `writes` (b,segments) tells for which entries a segment counts, `real` (b,length) which elements do; None: all.
        """
        keys, values = self.writer.project_source(rows, 0)
        # No fused kernel takes so few keys, and a table of slots × segment is small: the plain formula is quickest.
        impl = "reference" if self.segment < _FEW else "auto"
        memories = [memory]
        for segment in range(segments):
            part = slice(segment * self.segment, (segment + 1) * self.segment)
            mask = None if real is None else PaddingMask(real[:, part])
            query = self.writer.project_query(memory, 0)
            mixed = core.attend(
                query, keys[:, :, part], values[:, :, part], mask=mask, dropout=self.writer.weights_dropout, impl=impl
            )  # fmt: skip
            candidate = self.writer.output(mixed).to(memory.dtype)
            gated = (
                self.gate(candidate.flatten(0, 1), memory.flatten(0, 1)).view(memory.shape).to(memory.dtype)
            )
            memory = gated if writes is None else torch.where(writes[:, segment, None, None], gated, memory)
            memories.append(memory)
        return memories

    def _read(self, memories: list[Tensor], rows: Tensor) -> Tensor:
        """What elements (b,length,dim) read: the memory before their segment, and the segment up to themselves."""
        elements = rows.reshape(-1, self.segment, self.dim)  # every segment of every entry at once
        memory = torch.stack(memories, 1).flatten(0, 1)
        # Behind the slots, so that an element stands at the end of what it sees: causal() then says just that.
        found: Tensor = self.reader(elements, torch.cat([memory, elements], 1), mask=masks.causal())
        return found.reshape(rows.shape)

    def _slots(self, batch: int) -> Tensor:
        return self.slots.expand(batch, -1, -1)

    def _segments(self, length: int) -> int:
        return -(-length // self.segment)


def _compact(
    rows: Tensor, keep: Tensor | None, width: int, state: DynamicState | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Real rows moved to the left, behind those that wait in the state.

    Returns the line of them (b,width+1,dim), where each row went, (b,length), and how many the line holds, (b,). What
    is padding went to the last place of the line, behind everything that counts.
    """
    batch, length, dim = rows.shape
    keep = rows.new_ones(batch, length, dtype=torch.bool) if keep is None else keep
    place = keep.long().cumsum(1) - 1
    total = keep.long().sum(1)
    if state is None:
        line = rows.new_zeros(batch, width + 1, dim)
    else:
        place, total = place + state.count[:, None], total + state.count
        line = pad(state.open.to(rows.dtype), (0, 0, 0, width + 1 - state.open.shape[1]))
    place = place.masked_fill(~keep, width)
    return line.scatter(1, place[..., None].expand(-1, -1, dim), rows), place, total


def _shown(found: Tensor, spoilt: Tensor | None) -> Tensor:
    """Results (b,length,dim) that are NaN from the first spoilt element (b,≥length) on: all later ones have read it.

    Elements that are not finite are kept out of the computation, where they would reach the gradients of weights even
    from the future of every row that counts.
    """
    assert spoilt is not None
    late = spoilt[:, : found.shape[1]].long().cumsum(1) > 0
    return found.masked_fill(late[..., None], torch.nan)


def _picked(rows: Tensor, place: Tensor) -> Tensor:
    """Rows (b,length,dim) at the places (b,n)."""
    return rows.gather(1, place[..., None].expand(-1, -1, rows.shape[2]))
