"""Segments of a map, such as documents: ranges of positions that attend among themselves.

Keys are pooled to at most 128 cells, so that the cost does not depend on the length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CELLS = 128
DIP = 0.25  # at a border, weight passing over it relative to the segments on both sides
LEAST_PASSING = 2.0  # the least weight, in rows, that passes inside a segment; a narrow diagonal band has less
Floats = NDArray[np.float64]


def passing(shares: Floats, cell: NDArray[np.int64]) -> Floats:
    """How much weight passes over each edge between two cells, (cells − 1,).

    `shares` (rows, cells): the weight of each row by cell. `cell` (rows,): the cell of the row itself.
    """
    before = np.cumsum(shares, 1)[:, :-1]
    total = shares.sum(1, keepdims=True)
    behind = np.arange(1, shares.shape[1])[None] <= cell[:, None]  # the edge lies before the row
    return np.asarray(np.where(behind, before, total - before).sum(0))


def borders(over: Floats) -> list[int]:
    """The cells at which a new segment begins, ascending; empty for a map without segments.

    An edge is a border if little weight passes over it, relative to the largest weight that passes over edges on its
    left and on its right. The clearest border is taken first, then both sides are split in the same way.
    """
    edges: list[int] = []
    open_ = [(0, len(over))]
    while open_:
        start, stop = open_.pop()
        stretch = over[start:stop]
        if len(stretch) < 3:
            continue
        left = np.maximum.accumulate(stretch)[:-2]
        right = np.maximum.accumulate(stretch[::-1])[::-1][2:]
        peak = np.minimum(left, right)
        dip = np.where(peak >= LEAST_PASSING, stretch[1:-1] / np.maximum(peak, 1e-9), np.inf)
        best = int(np.argmin(dip))
        if dip[best] > DIP:
            continue
        edge = start + best + 1
        edges.append(edge + 1)
        open_ += [(start, edge), (edge + 1, stop)]
    return sorted(edges)


def inside(shares: Floats, cell: NDArray[np.int64], begins: list[int]) -> tuple[Floats, float]:
    """The share of each row's weight in its own segment, (rows,), and the mean distance of that weight."""
    edges = np.array([0, *begins, shares.shape[1]])
    segment = np.searchsorted(edges, cell, side="right") - 1
    column = np.arange(shares.shape[1])
    kept = np.where((column >= edges[segment][:, None]) & (column < edges[segment + 1][:, None]), shares, 0.0)
    total = kept.sum(1)
    away = (kept * np.abs(column - cell[:, None])).sum(1) / np.maximum(total, 1e-9)
    return np.asarray(total), float(away.mean())
