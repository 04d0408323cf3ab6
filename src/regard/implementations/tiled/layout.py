"""How `tiled` walks a request: its strips with their parts of the grid, kept for requests of the same structure.

On a CPU, what depends on sizes and structure alone is computed once. The table holds a bounded number of layouts, and
each of them a bounded number of bytes: what does not fit is computed again by each call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.formula import formula
from regard.formula.request import Request
from regard.implementations.tiled.strips import CELLS, KeyRun, Strip, strips
from regard.masks import Mask
from regard.normalizers import Softmax
from regard.support.tracing import unobserved
from regard.values.grid import Grid, Sizes, full_grid

_MOST_LAYOUTS = 32
_MOST_BYTES = 1 << 21  # of tensors that one layout keeps
_MOST_PLACES = 256


class Tile(NamedTuple):
    """What a mask shows of one run of keys: True where visible, and the same as numbers to add (0 or −inf)."""

    columns: slice  # of the strip
    visible: Tensor
    penalty: Tensor


class VisibleTiles(NamedTuple):
    """What a mask shows of a strip: a tile for each run that it hides in part."""

    tiles: tuple[Tile, ...]
    no_row_is_empty: bool  # where that is known


@dataclass(slots=True)
class PlacedStrip:
    """A strip and where it lies."""

    strip: Strip
    index: tuple[slice, slice, slice]  # in (b,h,q,…)
    spans: list[slice]  # of keys
    grid: Grid
    shown: VisibleTiles | None = None  # None: the mask says it at each call


class StripLayout:
    """Sizes, dtype and strips that requests have in common.

    Args:
        light: there are few temporaries, so that strips may be twice as large.
        room: bytes that may be kept.
        keeps_tiles: the mask shows the same in every request.
    """

    def __init__(
        self,
        sizes: Sizes,
        groups: int,
        dtype: torch.dtype,
        device: torch.device,
        light: bool,
        room: int = 0,
        keeps_tiles: bool = False,
    ) -> None:
        self.sizes, self.groups, self.dtype, self.device, self.light = sizes, groups, dtype, device, light
        self.shared = sizes[1] // max(1, groups)  # query heads that share a key head
        self.grid = full_grid(sizes, device)
        self.places: tuple[PlacedStrip, ...] | None = None
        self.keeps_tiles, self._room = keeps_tiles, room

    def keep(self, place: PlacedStrip, shown: VisibleTiles, new_bytes: int) -> None:
        """Keep what the mask shows of a place, if there is room for so many more bytes."""
        if self.keeps_tiles and new_bytes <= self._room:
            self._room -= new_bytes
            place.shown = shown

    def walk(self, mask: Mask | None) -> Iterator[PlacedStrip]:
        """Every strip in its place; together they cover every row. A few of them are kept after the first walk."""
        places: list[PlacedStrip] = []
        for strip in strips(mask, self.sizes, self.groups, self.device, self.light):
            place = self._place(strip)
            if self._room > 0:
                self._room -= place.grid.column.nbytes if len(place.spans) > 1 else 0
                places.append(place)
                if len(places) > _MOST_PLACES or self._room < 0:
                    self._room = 0
                    places.clear()
            yield place
        if self._room > 0:
            self.places = tuple(places)

    def _place(self, strip: Strip) -> PlacedStrip:
        spans = strip.spans
        heads = slice(strip.groups.start * self.shared, strip.groups.stop * self.shared)
        columns: slice | Tensor = spans[0] if spans else slice(0, 0)
        if len(spans) > 1:
            columns = torch.cat([self.grid.column[span] for span in spans])
        grid = self.grid.part(batch=strip.batch, heads=heads, rows=strip.rows, columns=columns)
        return PlacedStrip(strip, (strip.batch, heads, strip.rows), spans, grid)

    def part(self, place: PlacedStrip, run: KeyRun) -> Grid:
        """The grid of one run of keys of a place."""
        batch, heads, rows = place.index
        return self.grid.part(batch=batch, heads=heads, rows=rows, columns=slice(run.start, run.stop))


class LayoutKey(NamedTuple):
    """What a kept layout depends on. The spec of a mask stands for it; an empty one for all masks with tensors."""

    spec: str | None
    budget: int
    inference: bool  # tensors made in inference mode must not be used outside of it
    sizes: Sizes
    groups: int
    dtype: torch.dtype
    light: bool


def key_of(request: Request, drops: bool) -> LayoutKey | None:
    """The key of a request whose layout may be kept. `drops`: there is dropout."""
    sizes, mask, budget = request.sizes, request.mask, CELLS["cpu"]
    varies = mask is not None and bool(mask.tensors)  # then all is computed at once, or the strips differ
    if request.query.device.type != "cpu" or (varies and math.prod(sizes) > budget) or not unobserved():
        return None
    if 8 * sum(sizes) > _MOST_BYTES:  # the grid has an index for each entry, head, query and key
        return None
    dtype, light = formula.accumulation_dtype(request.query.dtype), _is_light(request, drops)
    spec = None if mask is None else "" if varies else mask.spec
    return LayoutKey(spec, budget, torch.is_inference_mode_enabled(), sizes, request.key.shape[1], dtype, light)


def layout_of(request: Request, drops: bool) -> StripLayout:
    """The layout of a request."""
    key = key_of(request, drops)
    if key is not None:
        return kept_layout(key)
    dtype, light = formula.accumulation_dtype(request.query.dtype), _is_light(request, drops)
    return StripLayout(request.sizes, request.key.shape[1], dtype, request.query.device, light)


def _is_light(request: Request, drops: bool) -> bool:
    """Whether few temporaries are needed: the bits of dropout take memory of their own, as other normalisers do."""
    return isinstance(request.normalizer, Softmax) and not drops


@lru_cache(maxsize=_MOST_LAYOUTS)
def kept_layout(key: LayoutKey) -> StripLayout:
    """The layout that requests of this key share."""
    room, cpu = _MOST_BYTES - 8 * sum(key.sizes), torch.device("cpu")
    return StripLayout(key.sizes, key.groups, key.dtype, cpu, key.light, room, keeps_tiles=key.spec != "")


def tiles_repeat(mask: Mask, grid: Grid) -> bool:
    """Whether a mask has equal tiles along a diagonal, in every batch entry and head."""
    if not mask.by_distance or 0 in grid.sizes:
        return False
    return mask.tile(grid.part(rows=slice(0, 1), columns=slice(0, 1))).shape[:2] == (1, 1)
