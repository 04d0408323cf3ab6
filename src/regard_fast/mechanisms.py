"""The mechanisms that the kernels know, by class: what of each is linear maps of rows, and what lies between heads."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from regard.nn.dynamic_memory import DynamicMemory
from regard.nn.multihead import Multihead
from regard.nn.static_memory import StaticMemory
from regard_fast.fused_memory import projected
from regard_fast.fused_rows import multihead
from regard_fast.fused_rows.layers import join
from regard_fast.fused_rows.multihead import is_plain, mixed_heads
from regard_fast.fused_rows.row_maps import RowMaps


def row_maps(layer: nn.Module) -> RowMaps | None:
    """A mechanism as linear maps around something between heads; None if it is more than that, or not known."""
    if isinstance(layer, Multihead):  # whose presets are known by what they leave as it is
        return multihead.row_maps(layer)
    if type(layer) is StaticMemory:
        return _static(layer)
    return _dynamic(layer) if type(layer) is DynamicMemory else None


def _static(layer: StaticMemory) -> RowMaps | None:
    reader, writer = layer.reader, layer.writer
    plain = is_plain(reader) and is_plain(writer) and layer.source_dim == layer.dim
    if not plain or type(layer.norm) is not nn.LayerNorm:
        return None
    maps = (reader.query_map, writer.key_map, writer.value_map)
    return RowMaps(maps, partial(static_mixed, layer), reader.output_map, layer.num_heads)


def static_mixed(layer: StaticMemory, heads: list[Tensor]) -> Tensor:
    """What projected queries read from the memory that projected keys and values write, all (b,h,n,d)."""
    query, key, value = heads
    batch, writer, reader = query.shape[0], layer.writer, layer.reader
    slots = writer.query_heads(layer.slots[None]).expand(batch, -1, -1, -1)
    written = mixed_heads(writer, [slots.to(key.dtype), key, value])
    memory = layer.slots.expand(batch, -1, -1).contiguous()
    maps = (reader.key_map, reader.value_map)
    kept = join(memory, written, writer.output_map, layer.norm, maps, layer.num_heads)
    return mixed_heads(reader, [query, *kept])


def _dynamic(layer: DynamicMemory) -> RowMaps | None:
    reader, writer = layer.reader, layer.writer
    if not (is_plain(reader) and is_plain(writer)):
        return None
    maps = (reader.query_map, reader.key_map, reader.value_map, writer.key_map, writer.value_map)
    # A single segment is not written.
    shortest = layer.segment + 1
    return RowMaps(maps, partial(projected.mixed, layer), reader.output_map, layer.num_heads, shortest=shortest)
