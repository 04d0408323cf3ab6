"""How `tiled` cuts the array of scores: strips of queries, each with the ranges of keys its mask allows.

A strip is small enough to stay in cache (on a GPU: large enough to occupy the device) and always holds complete rows,
so that any normaliser works on it as on the full array.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from regard.masks import EMPTY, FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.values.grid import Sizes
from regard.values.value import rebuild

_BLOCK = 64  # the smallest block of queries or keys that a mask grades
_MOST_BLOCKS = 1 << 20  # longer sequences are graded in larger blocks
CELLS = {"cpu": 1 << 19}  # scores at once: with fewer, starting strips dominates; more do not fit the cache
_CELLS_ELSEWHERE = 1 << 22
_STRIP_COST = 1 << 14  # what starting one more strip costs, in scores


class KeyRun(NamedTuple):
    """A range of keys; `partial`: the mask hides some of its pairs."""

    start: int
    stop: int
    partial: bool


@dataclass(frozen=True)
class Strip:
    """Some batch entries, key heads and query rows, with the keys those rows may see."""

    batch: slice
    groups: slice
    rows: slice
    runs: tuple[KeyRun, ...]  # none: these rows see nothing

    @property
    def spans(self) -> list[slice]:
        """The runs, joined where they touch."""
        spans: list[slice] = []
        for run in self.runs:
            if spans and spans[-1].stop == run.start:
                spans[-1] = slice(spans[-1].start, run.stop)
            else:
                spans.append(slice(run.start, run.stop))
        return spans


def strips(mask: Mask | None, sizes: Sizes, groups: int, device: torch.device, light: bool) -> Iterator[Strip]:
    """Cover every row and every visible pair with strips; `light`: few temporaries, so strips may be twice as large."""
    batch, heads, queries, keys = sizes
    if 0 in sizes:
        yield Strip(slice(0, batch), slice(0, groups), slice(0, queries), ())
        return
    budget, shared = CELLS.get(device.type, _CELLS_ELSEWHERE), heads // groups
    if mask is None or math.prod(sizes) <= budget:
        bands: tuple[RowBand, ...] = (RowBand(0, batch, 0, queries, (KeyRun(0, keys, mask is not None),)),)
    elif mask.tensors:
        bands = _bands(mask, sizes, device, budget)
    else:
        bands = _cached_bands(mask.spec, sizes, budget)
    for band in bands:
        yield from _split(band, groups, shared, 2 * budget if light else budget)


class RowBand(NamedTuple):
    """Rows that see the same runs of keys, in some batch entries."""

    first_batch: int
    last_batch: int
    top: int
    bottom: int
    runs: tuple[KeyRun, ...]


def _split(band: RowBand, groups: int, shared: int, budget: int) -> Iterator[Strip]:
    """Cut a band into strips of at most `budget` scores: first by heads, then by rows."""
    width = sum(run.stop - run.start for run in band.runs)
    height = band.bottom - band.top
    if width == 0:
        yield Strip(slice(band.first_batch, band.last_batch), slice(0, groups), slice(band.top, band.bottom), ())
        return
    pairs = (band.last_batch - band.first_batch) * groups  # (batch entry, key head) pairs
    together = max(1, min(pairs, budget // (shared * width * min(height, _BLOCK))))
    if together >= groups:
        entries, heads = together // groups, groups
    else:
        entries, heads = 1, together
    rows = max(1, min(height, budget // (shared * width * entries * heads)))
    for first in range(band.first_batch, band.last_batch, entries):
        for group in range(0, groups, heads):
            for top in range(band.top, band.bottom, rows):
                yield Strip(
                    slice(first, min(first + entries, band.last_batch)),
                    slice(group, min(group + heads, groups)),
                    slice(top, min(top + rows, band.bottom)),
                    band.runs,
                )


def fine_bands(mask: Mask, sizes: Sizes) -> tuple[RowBand, ...]:
    """Every row of blocks of a mask without tensors as a band of its own: no work is added to have fewer."""
    return _cached_bands(mask.spec, sizes, 0)


@lru_cache(maxsize=256)
def _cached_bands(spec: str, sizes: Sizes, budget: int) -> tuple[RowBand, ...]:
    """A mask without tensors has the same bands every time."""
    mask = rebuild(spec, ())
    assert isinstance(mask, Mask)
    return _bands(mask, sizes, torch.device("cpu"), budget)


def _bands(mask: Mask, sizes: Sizes, device: torch.device, budget: int) -> tuple[RowBand, ...]:
    batch, heads, queries, keys = sizes
    block = _BLOCK
    while -(-queries // block) * -(-keys // block) > _MOST_BLOCKS:
        block *= 2
    # On a GPU the grades are computed on the host, from structure alone: reading the tensors would synchronize.
    on_cpu = device.type == "cpu"
    grades = mask.grades(cut(sizes, block, block, "cpu", read_tensors=on_cpu)).numpy()
    best, worst = grades.max(1), grades.min(1)  # over the heads, which a strip holds together
    states = np.where(best == EMPTY, EMPTY, np.where(worst == FULL, FULL, PARTIAL))  # (b|1, nq, nk)
    bands: list[RowBand] = []
    for entry in range(len(states)):
        first, last = (entry, entry + 1) if len(states) > 1 else (0, batch)
        for top, bottom, state in _merged(states[entry], block, (last - first) * heads, budget):
            bands.append(RowBand(first, last, top, min(bottom, queries), _runs(state, block, keys)))
    return tuple(bands)


def _merged(states: np.ndarray, block: int, planes: int, budget: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Join neighbouring rows of blocks while that adds little work, for fewer and larger strips."""
    top, current = 0, states[0]
    spent = _count(current) * block * block * planes
    for row in range(1, len(states) + 1):
        if row < len(states):
            joined = np.where(
                (current == states[row]), current, np.where(current + states[row] == EMPTY, EMPTY, PARTIAL)
            )
            cells = _count(joined) * (row + 1 - top) * block * block * planes
            separate = spent + _count(states[row]) * block * block * planes + _STRIP_COST
            if cells <= max(budget, spent) and cells <= 1.25 * separate:
                current, spent = joined, cells
                continue
        yield top * block, row * block, current
        if row < len(states):
            top, current = row, states[row]
            spent = _count(current) * block * block * planes


def _count(state: np.ndarray) -> int:
    return int(np.count_nonzero(state))


def _runs(state: np.ndarray, block: int, keys: int) -> tuple[KeyRun, ...]:
    """Neighbouring blocks of the same kind as ranges of keys."""
    edges = np.flatnonzero(np.diff(state)) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(state)]
    return tuple(
        KeyRun(start * block, min(stop * block, keys), bool(state[start] == PARTIAL))
        for start, stop in zip(starts, stops, strict=True)
        if state[start] != EMPTY
    )
