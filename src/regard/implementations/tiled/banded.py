"""Masks of distances through torch's fused kernel, forward: a window, a causal window, an offset one.

Such a mask shows each block of queries the same pairs, one block further on. So the blocks of keys that overlap are
views of one tensor, the tile of the mask is computed once, and one call of the fused kernel takes many blocks. It
keeps no promise about infinities and NaN: entries of the batch whose numbers are not moderate go through scored strips,
each by itself, so that no entry depends on another; and each position must see itself, so that no key is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.implementations.tiled.scored_strip import TiledAttention, all_moderate
from regard.implementations.tiled.strips import RowBand, fine_bands
from regard.normalizers import Softmax

_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
_AT_ONCE = 1 << 21  # numbers of the output in one call, which it takes once more before they are written


@dataclass(frozen=True)
class _Alike:
    """`count` blocks of rows from `top` on, each `height` further than the last, and so are the keys they see."""

    top: int
    height: int
    first_key: int
    width: int
    partial: bool
    count: int


def suits(attention: TiledAttention, value: Tensor) -> bool:
    """Whether the fused kernel may run this, but for the numbers themselves."""
    request, mask = attention.request, attention.request.mask
    return (
        mask is not None
        and attention.tiles_repeat
        and not mask.tensors
        and request.query.device.type == "cpu"
        and request.score.is_dot
        and isinstance(request.normalizer, Softmax)
        and request.bias is None
        and request.sink is None
        and request.scale >= _SMALLEST_SCALE
        and request.query.shape[3] == value.shape[3]
        and not attention.drops
        and 0 not in attention.sizes
        and attention.sizes[2] == attention.sizes[3]
        and bool(mask.tile(attention.grid.part(rows=slice(0, 1), columns=slice(0, 1))).all())
    )


def run(attention: TiledAttention, value: Tensor, output: Tensor) -> list[int]:
    """Write the output (b,h,q,v) of each entry of the batch whose numbers are moderate; return the others."""
    request, (batch, heads, _, _) = attention.request, attention.sizes
    entries = list(range(batch))
    if not all_moderate(attention, value):
        entries = [entry for entry in entries if all_moderate(one_entry(attention, entry), value[entry : entry + 1])]
    assert request.mask is not None
    rows = [_with_unit_stride(part.to(attention.dtype)) for part in (request.query, request.key, value)]
    grouped: dict[str, Any] = {"enable_gqa": True} if attention.shared > 1 else {}
    tiles: dict[tuple[int, int, int], Tensor] = {}
    for bands in _alike(fine_bands(request.mask, attention.sizes)):
        if bands.width == 0:
            output[:, :, bands.top : bands.top + bands.height] = 0
            continue
        tile = _tile(attention, bands, tiles) if bands.partial else None
        together = max(1, _AT_ONCE // (heads * bands.height * output.shape[3]))
        for entry in entries:
            for done in range(0, bands.count, together):
                count = min(together, bands.count - done)
                top, first = bands.top + done * bands.height, bands.first_key + done * bands.height
                query = _blocks(rows[0][entry], top, bands.height, bands.height, count)
                key, values = (_blocks(part[entry], first, bands.width, bands.height, count) for part in rows[1:])
                found = scaled_dot_product_attention(query, key, values, attn_mask=tile, scale=request.scale, **grouped)
                into = output[entry, :, top : top + count * bands.height]
                into.unflatten(1, (count, bands.height)).copy_(found.transpose(0, 1))
    return sorted(set(range(batch)) - set(entries))


def one_entry(attention: TiledAttention, entry: int) -> TiledAttention:
    """The same attention of one entry of the batch."""
    request, alone = attention.request, slice(entry, entry + 1)
    part = replace(request, query=request.query[alone], key=request.key[alone], value=request.value[alone])
    return TiledAttention(part, drops=attention.drops)


def _alike(bands: tuple[RowBand, ...]) -> Iterator[_Alike]:
    """Join neighbouring bands of equal form. Those of several runs are joined to one: what lies between is masked."""
    current: _Alike | None = None
    for band in bands:
        first, last = (band.runs[0].start, band.runs[-1].stop) if band.runs else (0, 0)
        partial = len(band.runs) > 1 or any(run.partial for run in band.runs)
        next_one = _Alike(band.top, band.bottom - band.top, first, last - first, partial, 1)
        if current is not None and _continues(current, next_one):
            current = _Alike(current.top, current.height, current.first_key, current.width, partial, current.count + 1)
            continue
        if current is not None:
            yield current
        current = next_one
    if current is not None:
        yield current


def _continues(before: _Alike, new: _Alike) -> bool:
    passed = before.count * before.height
    return (
        0 < before.width == new.width
        and before.height == new.height
        and before.partial == new.partial
        and new.top == before.top + passed
        and new.first_key == before.first_key + passed
    )


def _tile(attention: TiledAttention, bands: _Alike, tiles: dict[tuple[int, int, int], Tensor]) -> Tensor:
    """Numbers to add to the scores of a block, 0 or −inf, (height, width)."""
    key = (bands.first_key - bands.top, bands.height, bands.width)
    if key not in tiles:
        mask = attention.request.mask
        assert mask is not None
        rows, columns = (
            slice(bands.top, bands.top + bands.height),
            slice(bands.first_key, bands.first_key + bands.width),
        )
        seen = mask.tile(attention.grid.part(rows=rows, columns=columns))[0, 0]
        tiles[key] = torch.zeros(seen.shape, dtype=attention.dtype).masked_fill_(~seen, -torch.inf)
    return tiles[key]


def _blocks(rows: Tensor, start: int, length: int, step: int, count: int) -> Tensor:
    """`count` blocks (h,length,d) of rows (h,n,d), each `step` rows after the last: (count,h,length,d), not copied."""
    (heads, _, width), (by_head, by_row, _) = rows.shape, rows.stride()
    shape, strides = (count, heads, length, width), (step * by_row, by_head, by_row, 1)
    return rows.as_strided(shape, strides, rows.storage_offset() + start * by_row)


def _with_unit_stride(rows: Tensor) -> Tensor:
    return rows if rows.stride(3) == 1 else rows.contiguous()
