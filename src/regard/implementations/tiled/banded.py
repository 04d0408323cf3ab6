"""Masks of distances through torch's fused kernel, forward: a window, a causal window, an offset one.

Such a mask shows each block of queries the same pairs, one block further on. So the blocks of keys that overlap are
views of one tensor, the tile of the mask is computed once, and one call of the fused kernel takes many blocks. It
keeps no promise about infinities and NaN: entries of the batch whose numbers are not moderate go through scored strips,
each by itself, so that no entry depends on another; and each position must see itself, so that no key is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.formula import formula
from regard.formula.request import Request
from regard.implementations.tiled.layout import tiles_repeat
from regard.implementations.tiled.scored_strip import all_moderate
from regard.implementations.tiled.strips import RowBand, fine_bands
from regard.masks import Mask
from regard.normalizers import Softmax
from regard.support.tracing import unobserved
from regard.values.grid import Sizes, full_grid
from regard.values.value import rebuild

_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
_MOST_BANDS, _MOST_BYTES = 32, 1 << 21  # masks whose bands are kept, and bytes of the tiles of each
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


class Bands:
    """The blocks of requests of the same mask and sizes, and the tiles of the mask, if they are few."""

    def __init__(self, mask: Mask, sizes: Sizes, dtype: torch.dtype) -> None:
        self.mask, self.sizes, self.dtype = mask, sizes, dtype
        self.alike = tuple(_alike(fine_bands(mask, sizes)))
        cells = sum(alike.height * alike.width for alike in self.alike if alike.partial)
        self.tiles = list(self.computed_tiles()) if cells * dtype.itemsize <= _MOST_BYTES else None

    def computed_tiles(self) -> Iterator[Tensor | None]:
        """For each of `alike` the numbers to add to the scores of a block, 0 or −inf, (height, width); None: all 0."""
        grid = full_grid(self.sizes, "cpu")
        for alike in self.alike:
            if not alike.partial:
                yield None
                continue
            rows = slice(alike.top, alike.top + alike.height)
            columns = slice(alike.first_key, alike.first_key + alike.width)
            visible = self.mask.tile(grid.part(rows=rows, columns=columns))[0, 0]
            yield visible.new_zeros(visible.shape, dtype=self.dtype).masked_fill_(~visible, -torch.inf)


def bands_of(request: Request) -> Bands | None:
    """The blocks in which the fused kernel may run a request, but for the numbers themselves; None where it may not."""
    mask = request.mask
    if (
        mask is None
        or mask.tensors
        or request.bias is not None
        or request.sink is not None
        or request.want_logsumexp
        or request.dropout > 0
        or request.query.device.type != "cpu"
        or not request.score.is_dot
        or not isinstance(request.normalizer, Softmax)
        or request.scale < _SMALLEST_SCALE
        or request.query.shape[3] != request.value.shape[3]
        or request.query.shape[2] != request.key.shape[2]
        or not unobserved()
    ):
        return None
    dtype = formula.accumulation_dtype(request.query.dtype)
    return _kept_bands(mask.spec, request.sizes, dtype, torch.is_inference_mode_enabled())


@lru_cache(maxsize=_MOST_BANDS)
def _kept_bands(spec: str, sizes: Sizes, dtype: torch.dtype, inference: bool) -> Bands | None:
    mask, grid = rebuild(spec, ()), full_grid(sizes, "cpu")
    assert isinstance(mask, Mask)
    if not tiles_repeat(mask, grid) or not bool(mask.tile(grid.part(rows=slice(0, 1), columns=slice(0, 1))).all()):
        return None
    return Bands(mask, sizes, dtype)


def run(bands: Bands, request: Request, output: Tensor) -> list[int]:
    """Write the output (b,h,q,v) of each entry of the batch whose numbers are moderate; return the others."""
    batch, heads, _, _ = bands.sizes
    entries = list(range(batch))
    if not all_moderate(request, request.value):
        requests = [one_entry(request, entry) for entry in entries]
        entries = [entry for entry in entries if all_moderate(requests[entry], requests[entry].value)]
    rows = []
    for tensor in (request.query, request.key, request.value):
        wide = tensor.to(bands.dtype)
        rows.append((wide if wide.stride(3) == 1 else wide.contiguous()).unbind())
    grouped: dict[str, Any] = {"enable_gqa": True} if request.key.shape[1] != heads else {}
    tiles = bands.computed_tiles() if bands.tiles is None else bands.tiles
    for alike, tile in zip(bands.alike, tiles, strict=True):
        height, width = alike.height, alike.width
        if width == 0:
            output[:, :, alike.top : alike.top + height] = 0
            continue
        together = max(1, _AT_ONCE // (heads * height * output.shape[3]))
        for entry in entries:
            for done in range(0, alike.count, together):
                count = min(together, alike.count - done)
                top, first = alike.top + done * height, alike.first_key + done * height
                covered = slice(first, first + (count - 1) * height + width)
                # Views (count,h,height|width,d) of rows that overlap.
                query = rows[0][entry][:, top : top + count * height].unfold(1, height, height).permute(1, 0, 3, 2)
                key = rows[1][entry][:, covered].unfold(1, width, height).permute(1, 0, 3, 2)
                value = rows[2][entry][:, covered].unfold(1, width, height).permute(1, 0, 3, 2)
                mixed = scaled_dot_product_attention(query, key, value, attn_mask=tile, scale=request.scale, **grouped)
                into = output[entry, :, top : top + count * height]
                into.unflatten(1, (count, height)).copy_(mixed.transpose(0, 1))
    return sorted(set(range(batch)) - set(entries))


def one_entry(request: Request, entry: int) -> Request:
    """The same attention of one entry of the batch."""
    alone = slice(entry, entry + 1)
    return replace(request, query=request.query[alone], key=request.key[alone], value=request.value[alone])


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
