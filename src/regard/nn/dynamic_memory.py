"""`dynamic-memory`: a memory of slots that is updated after each segment of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import regard.dispatch.attention as dispatch
from regard import masks
from regard.errors import BadValue, unknown_name
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn.multihead import Multihead
from regard.nn.parts import masking
from regard.nn.parts.mechanism import Mechanism, mechanism
from regard.nn.parts.nonfinite import zero_nonfinite
from regard.nn.parts.scan import lengthened
from regard.nn.parts.state import State
from regard.nn.parts.steps import run_steps, traced_with_any_length
from regard.nn.static_memory import MemoryState, checked_state
from regard.support.arguments import whole_number

UPDATES = ("gru", "memory")
_FEW = 16  # segments shorter than this run by the plain formula


@dataclass(frozen=True, kw_only=True)
class DynamicState(MemoryState):
    """The memory after the last complete segment, and the elements of the incomplete one."""

    open: Tensor  # (b,segment,dim), the elements first, then zeros
    count: Tensor  # (b,), the number of those elements, less than a segment


@mechanism("dynamic-memory", causal="yes", time="n·(m + s)·d", memory="n·(1 + m/s)·d", slots=3, segment=2)
class DynamicMemory(Mechanism):
    """An element attends to a memory and to its segment so far; each complete segment updates the memory.

        o_i = multihead(x_i, [M_{s−1}; x_j, j ≤ i in segment s]),   C_s = multihead(M_{s−1}, segment s)

        update="gru":     M_s = GRU(C_s, M_{s−1}) = (1 − z) ⊙ n + z ⊙ M_{s−1}
        update="memory":  M_s = norm(M_{s−1} + C_s)

    With "gru" each slot is a hidden state of a gated recurrent unit. With "memory" the memory is a row of slots of a
    memory-augmented encoder: over a source of a single segment it is the memory of `static-memory`. M_0 is learned.
    Padding does not count towards segments, is not written, and gets zeros. With a state, an incomplete segment is
    continued by later calls. Masks must ignore the query.

    With a source the formula differs: the source is written first, segment by segment, including the last short one;
    then every query attends to the final memory, and the queries are not written.

    With bidirectional=True a second memory with slots M'_0 of its own is updated by the same maps from the last segment
    to the first, and o_i = multihead(x_i, [M_{s−1}; M'_{s+1}; segment s]): an element sees the whole sequence. A
    source is written in both directions, and the queries attend to both memories.

    Paper: Hutchins et al. 2022, section 3 (a recurrent, gated memory for each block); Bulatov et al. 2022, section 3
    (segments and memory); Cho et al. 2014, equations 5 to 8 (the gate); Burtsev et al. 2020 (memory slots in an
    encoder); Schuster and Paliwal 1997 (both directions).
    Empty row: none, because an element sees the memory and itself; with a source that is all padding the memory stays
    M_0.
    When to use: for long or streamed sequences whose past has to fit into a fixed number of slots: the cost of an
    element does not grow with the length.

    Args:
        dim: width of queries and outputs, and of a slot.
        num_heads: number of heads that share that width, for writing and for reading.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; where it differs from dim, the source is mapped to dim first.
        slots: number of slots of the memory.
        segment: number of elements after which the memory is updated.
        update: gru (a gated recurrent unit) or memory (residual and normalisation).
        bidirectional: whether elements also see later ones; then a sequence cannot be continued from a state.

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
        update: str = "gru",
        bidirectional: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        if update not in UPDATES:
            raise unknown_name("update", update, UPDATES)
        self.update = update
        self.bidirectional = bidirectional
        self.segment = whole_number("segment", segment, 1)
        self.slots = nn.Parameter(torch.randn(whole_number("slots", slots, 1), self.dim))
        self.source_map = nn.Linear(self.source_dim, self.dim) if self.source_dim != self.dim else None
        self.writer = Multihead(dim, num_heads, dropout)
        self.gate = nn.GRUCell(self.dim, self.dim) if update == "gru" else None
        self.norm = nn.LayerNorm(self.dim) if update == "memory" else None
        self.reader = Multihead(dim, num_heads, dropout)
        self.later_slots = nn.Parameter(torch.randn_like(self.slots)) if bidirectional else None

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return what the queries read, (b,q,dim); with a state, also the next state."""
        before = checked_state(self, DynamicState, query, source, state)
        if source is None and (before is None or before.source is None):
            if not self.bidirectional:
                return self._within(query, mask, before)
            if before is not None:
                raise BadValue(
                    "state: a layer with bidirectional=True reads a sequence from both ends, so it cannot continue "
                    "from a state. Build it without bidirectional, or pass a source."
                )
            return self._within_both(query, mask)
        if before is None or not before.written:
            assert source is not None
            memory = self._summary(source, mask, query.shape[1], before)
        else:
            memory = before.memory
        output: Tensor = self.reader(query, memory)
        if before is None:
            return output
        length = before.source if source is None else source.shape[1]
        length_so_far = before.seen + query.shape[1]
        return output, replace(before, memory=memory, written=True, source=length, seen=length_so_far)

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> DynamicState:
        """Return the learned slots (b,m,dim), of both directions (b,2m,dim), and a segment without elements."""
        device, dtype = self.placement(device, dtype)
        return DynamicState(
            memory=self._slots(batch).to(device=device, dtype=dtype),
            open=torch.zeros(batch, self.segment, self.dim, device=device, dtype=dtype),
            count=torch.zeros(batch, dtype=torch.int64, device=device),
        )

    def extra_repr(self) -> str:
        both = ", bidirectional=True" if self.bidirectional else ""
        sizes = f"slots={len(self.slots)}, segment={self.segment}, update={self.update!r}"
        return f"{super().extra_repr()}, {sizes}{both}"

    def _within(
        self, query: Tensor, mask: Mask | Tensor | None, state: DynamicState | None
    ) -> Tensor | tuple[Tensor, State]:
        """Self-attention: the queries read the memory and are then written to it."""
        (batch, new, _), past_length = query.shape, 0 if state is None else state.seen
        keep = masking.kept(mask, batch, new, new, past_length, query.device)
        rows = masking.without_padding(query, keep)
        # The state holds fewer elements than a segment; this is the most segments that they and the new ones can fill.
        segments = self._segments(new if state is None else new + self.segment - 1)
        width = segments * self.segment
        if state is None and keep is None:  # nothing to shift: no padding and no pending elements
            line, nonfinite = zero_nonfinite(lengthened(rows, width - new), True)
            memories = self._written(self._slots(batch), line, segments, last=segments - 1)
            return _with_nan(self._read(memories[:, :segments], line), nonfinite)[:, :new]
        before = self.initial_state(batch, query.device, query.dtype) if state is None else state
        line, index, total = _compact(rows, keep, width, before)
        clean, nonfinite = zero_nonfinite(line, True)
        complete = total[:, None] >= torch.arange(1, segments + 1, device=query.device) * self.segment
        # The memory after the last segment is only read by a later call.
        last = segments - 1 if state is None else segments
        memories = self._written(before.memory, clean, segments, complete, last=last)
        output = _with_nan(self._read(memories[:, :segments], clean[:, :width]), nonfinite)
        output = _gathered(pad(output, (0, 0, 0, 1)), index)  # padding gets the row of zeros at the end
        if state is None:
            return output
        count = total % self.segment
        open_places = (total - count)[:, None] + torch.arange(self.segment, device=query.device)
        pending = _gathered(line, open_places.clamp(max=width))
        assert nonfinite is not None
        lost = (nonfinite & (torch.arange(width + 1, device=query.device) < open_places[:, :1])).any(1)
        memory = memories[:, -1].masked_fill(lost[:, None, None], torch.nan)
        return output, replace(state, memory=memory, open=pending, count=count, seen=past_length + new)

    def _within_both(self, query: Tensor, mask: Mask | Tensor | None) -> Tensor:
        """Self-attention to the memories of the segments before and after, and to the whole own segment."""
        batch, new, _ = query.shape
        keep = masking.kept(mask, batch, new, new, 0, query.device)
        segments = self._segments(new)
        width = segments * self.segment
        line, index, total = _compact(masking.without_padding(query, keep), keep, width)
        clean, nonfinite = zero_nonfinite(line[:, :width], True)
        real = None
        if keep is not None or width != new:
            real = torch.arange(width, device=query.device) < total[:, None]
        earlier, later = self._written_both(self._slots(batch), clean, segments, real, last=segments - 1)
        memory = torch.cat([earlier[:, :segments], later[:, :segments].flip(1)], 2).flatten(0, 1)
        elements = self._apart(clean)
        padding = None
        if real is not None:
            padding = PaddingMask(pad(self._apart(real), (memory.shape[1], 0), value=True))
        output = self.reader(elements, torch.cat([memory, elements], 1), mask=padding).reshape(clean.shape)
        assert nonfinite is not None
        output = output.masked_fill(nonfinite.any(1)[:, None, None], torch.nan)  # every element sees it
        return _gathered(pad(output, (0, 0, 0, 1)), index)  # padding gets the row of zeros at the end

    def _summary(self, source: Tensor, mask: Mask | Tensor | None, queries: int, state: DynamicState | None) -> Tensor:
        """Return the memory (b,m|2m,dim) after the whole source, including its last short segment."""
        batch, length, _ = source.shape
        keep = masking.kept(mask, batch, queries, length, 0, source.device)
        rows = masking.without_padding(source, keep)
        rows = rows if self.source_map is None else self.source_map(rows)
        memory = self._slots(batch) if state is None else state.memory
        segments = self._segments(length)
        width = segments * self.segment
        if keep is None and width == length:
            real, line = None, rows
        else:
            line, _, total = _compact(rows, keep, width)
            real = torch.arange(width, device=source.device) < total[:, None]
        if self.bidirectional:
            earlier, later = self._written_both(memory, line[:, :width], segments, real)
            return torch.cat([earlier[:, -1], later[:, -1]], 1)
        writes = None if real is None else real[:, :: self.segment]
        return self._written(memory, line, segments, writes, real)[:, -1]

    def _written_both(
        self, memory: Tensor, rows: Tensor, segments: int, real: Tensor | None, last: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the memories of `_written` from the first segment on, and those from the last segment backwards.

        `memory` (b,2m,dim) holds the slots of both directions; rows (b,length,dim) and real (b,length) are complete
        segments. Both directions run in one batch, so that the loop takes no more steps than in one direction.
        """

        def both(given: Tensor) -> Tensor:
            split: Tensor = given.unflatten(1, (segments, self.segment))
            return torch.cat([given, split.flip(1).flatten(1, 2)])

        batch, real = rows.shape[0], None if real is None else both(real)
        writes = None if real is None else real[:, :: self.segment]
        both_ways = self._written(torch.cat(memory.chunk(2, 1)), both(rows), segments, writes, real, last)
        return both_ways[:batch], both_ways[batch:]

    def _written(
        self,
        memory: Tensor,
        rows: Tensor,
        segments: int,
        writes: Tensor | None = None,
        real: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Return the memory before the first of the `segments` of rows (b,length,dim), and after each of them.

        The result is (b,1+segments,m,dim). `writes` (b,segments) says which segments update the memory, `real`
        (b,length) which elements are not padding; None: all. `last`: the segments after it need not be written.
        """
        wanted = segments if last is None else last
        if not traced_with_any_length(segments):  # a traced loop writes all: it needs one, and there may be none
            if wanted == 0:
                return memory[:, None]
            segments = wanted
        keys, values = self.writer.project_source(rows.narrow(1, 0, segments * self.segment), 0)
        return self._written_from(memory, keys, values, segments, writes, real)

    def _written_from(
        self,
        memory: Tensor,
        keys: Tensor,
        values: Tensor,
        segments: int,
        writes: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """The same from projected keys and values (b,h,segments·segment,d), for at least one segment."""
        # For few keys the plain formula is fastest, and its slots × segment array is small.
        impl = "reference" if self.segment < _FEW else "auto"

        def write(carry: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            memory, (key, value, *optional) = carry[0], given
            mask = None if real is None else PaddingMask(optional[-1])
            query = self.writer.project_query(memory, 0)
            dropout = self.writer.weights_dropout
            mixed = dispatch.attend(query, key, value, mask=mask, dropout=dropout, impl=impl)
            updated = self._updated(self.writer.output(mixed).to(memory.dtype), memory)
            after = updated if writes is None else torch.where(optional[0][:, None, None], updated, memory)
            return [after], [after]

        inputs = [rows.unflatten(2, (segments, self.segment)).movedim(2, 0) for rows in (keys, values)]
        if writes is not None:
            inputs.append(writes[:, :segments].mT)
        if real is not None:
            real = real.narrow(1, 0, segments * self.segment)
            inputs.append(real.unflatten(1, (segments, self.segment)).movedim(1, 0))
        _, (memories,) = run_steps(write, [memory], inputs)
        return torch.cat([memory[None], memories]).transpose(0, 1)

    def _updated(self, candidate: Tensor, memory: Tensor) -> Tensor:
        """Return the next memory (b,m,dim) from the candidates C_s and the memory."""
        if self.gate is None:
            assert self.norm is not None
            updated: Tensor = self.norm(memory + candidate)
        else:
            updated = self.gate(candidate.flatten(0, 1), memory.flatten(0, 1)).view(memory.shape)
        return updated.to(memory.dtype)

    def _read(self, memories: Tensor, rows: Tensor) -> Tensor:
        """Let elements (b,length,dim) attend to the memory before their segment and to the segment up to themselves."""
        elements = self._apart(rows)  # all segments of all batch entries at once
        memory = memories.flatten(0, 1)
        # With the slots first, bottom-right causal() lets an element see all slots and the segment up to itself.
        read: Tensor = self.reader(elements, torch.cat([memory, elements], 1), mask=masks.causal())
        return read.reshape(rows.shape)

    def _slots(self, batch: int) -> Tensor:
        slots = self.slots if self.later_slots is None else torch.cat([self.slots, self.later_slots])
        return slots.expand(batch, -1, -1)

    def _apart(self, rows: Tensor) -> Tensor:
        """Complete segments (b,length,…) as entries of a batch, (b·segments,segment,…)."""
        split: Tensor = rows.unflatten(1, (rows.shape[1] // self.segment, self.segment))
        return split.flatten(0, 1)

    def _segments(self, length: int | torch.SymInt) -> int:
        """The number of segments that so many elements fill, the last one perhaps in part; at least one."""
        # The compiler of torch 2.11 breaks its graph at a `sym_max` of plain numbers; `max` it knows, export does not.
        most = torch.sym_max if isinstance(length, torch.SymInt) else max
        filled: int = (most(length, 1) + (self.segment - 1)) // self.segment
        return filled


def _compact(
    rows: Tensor, keep: Tensor | None, width: int, state: DynamicState | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Move the rows that are not padding to the left, after the pending ones of the state.

    Returns these rows (b,width+1,dim), the new index of each row (b,length), and the number of rows (b,). Padding gets
    the last index, which no other row has.
    """
    batch, length, dim = rows.shape
    keep = rows.new_ones(batch, length, dtype=torch.bool) if keep is None else keep
    index = keep.long().cumsum(1) - 1
    total = keep.long().sum(1)
    if state is None:
        line = rows.new_zeros(batch, width + 1, dim)
    else:
        index, total = index + state.count[:, None], total + state.count
        line = pad(state.open.to(rows.dtype), (0, 0, 0, width + 1 - state.open.shape[1]))
    index = index.masked_fill(~keep, width)
    return line.scatter(1, index[..., None].expand(-1, -1, dim), rows), index, total


def _with_nan(found: Tensor, nonfinite: Tensor | None) -> Tensor:
    """Set outputs (b,length,dim) to NaN from the first non-finite element (b,≥length) on, which later elements read.

    Non-finite elements are left out of the computation, where they would reach the gradients of weights even if the
    loss depends on earlier rows only.
    """
    assert nonfinite is not None
    late = nonfinite[:, : found.shape[1]].long().cumsum(1) > 0
    return found.masked_fill(late[..., None], torch.nan)


def _gathered(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows (b,length,dim) at the indices (b,n)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[2]))
