"""`dynamic-memory` from projections of all rows, as the kernels of fused rows make them, without padding or state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

import regard.dispatch.attention as dispatch
from regard.masks.from_tensors import PaddingMask
from regard_fast.fused_memory.refusal import refusal, run
from regard_fast.fused_rows.multihead import mixed_heads

if TYPE_CHECKING:
    from regard.nn.dynamic_memory import DynamicMemory


def mixed(layer: DynamicMemory, heads: list[Tensor]) -> Tensor:
    """What the elements of two segments or more read, (b,h,n,d), before the output map.

    `heads` (b,h,n,d) are the queries, keys and values of the reader, and the keys and values of the writer.
    """
    batch, _, new, _ = heads[0].shape
    if not refusal(layer, batch, new):
        return run(layer, heads)
    segments, segment = layer._segments(new), layer.segment
    extra, real = segments * segment - new, None
    if extra:
        heads = [pad(rows, (0, 0, 0, extra)) for rows in heads]
        real = (torch.arange(new + extra, device=heads[0].device) < new).expand(batch, -1)
    query, key, value = (_apart(rows, segment) for rows in heads[:3])
    memory = _memories(layer, batch, heads[3:], segments, real if layer.bidirectional else None)
    # Each segment is an entry of the batch. Its keys and values come after those of the slots.
    memory = memory.flatten(0, 1)
    kept_key, kept_value = layer.reader.project_source(memory, 0)
    keys = torch.cat([kept_key.to(key.dtype), key], 2)
    values = torch.cat([kept_value.to(value.dtype), value], 2)
    if layer.bidirectional and real is not None:
        padding = PaddingMask(pad(layer._apart(real), (memory.shape[1], 0), value=True))
        attended = dispatch.attend(query, keys, values, mask=padding, dropout=layer.reader.weights_dropout)
    else:
        attended = mixed_heads(layer.reader, [query, keys, values], causal=not layer.bidirectional)
    joined: Tensor = attended.unflatten(0, (batch, segments)).transpose(1, 2).flatten(2, 3)
    return joined.narrow(2, 0, new)


def _memories(
    layer: DynamicMemory, batch: int, written: Sequence[Tensor], segments: int, real: Tensor | None
) -> Tensor:
    """The memory (b,segments,m|2m,dim) that each segment reads, from the keys and values of the writer."""
    memory, last = layer._slots(batch), segments - 1
    size = last * layer.segment
    if not layer.bidirectional:
        keys, values = (rows.narrow(2, 0, size) for rows in written)
        return layer._written_from(memory, keys, values, last)

    def both(given: Tensor, axis: int) -> Tensor:
        """The segments in order, and after them in the batch from the last to the first; the last is not read."""
        split: Tensor = given.unflatten(axis, (segments, layer.segment))
        backwards = split.flip(axis).flatten(axis, axis + 1)
        return torch.cat([given, backwards]).narrow(axis, 0, size)

    keys, values = (both(rows, 2) for rows in written)
    real_both = None if real is None else both(real, 1)
    writes = None if real_both is None else real_both[:, :: layer.segment]
    slots = torch.cat(memory.chunk(2, 1))
    earlier, later = layer._written_from(slots, keys, values, last, writes, real_both).chunk(2)
    return torch.cat([earlier, later.flip(1)], 2)


def _apart(heads: Tensor, segment: int) -> Tensor:
    """Complete segments (b,h,length,d) as entries of a batch, (b·segments,h,segment,d)."""
    split: Tensor = heads.unflatten(2, (-1, segment))
    return split.transpose(1, 2).flatten(0, 1)
