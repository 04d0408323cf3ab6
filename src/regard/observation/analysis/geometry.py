"""Which keys are visible to a row, inferred from the weights alone.

The mask is not read: models hide keys in many ways, but a hidden key has weight 0 in every head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.observation.analysis.sites import SiteLike, blocks, crosses, spread

_PROBED = 16  # rows that are inspected


@dataclass(frozen=True)
class Geometry:
    """The positions of the queries among the keys, and which keys are visible to them."""

    keys: int
    first: int  # the first and the last visible key: the rest is padding
    last: int
    offset: int | None  # the position of row 0 among the keys; None: queries and keys are different sequences
    causal: bool  # no row sees a key after its own position

    def positions(self, rows: Tensor) -> Tensor:
        """The positions of rows among the keys, (rows,); −1 where they have none."""
        return torch.full_like(rows, -1) if self.offset is None else rows + self.offset

    def visible(self, rows: Tensor) -> Tensor:
        """(rows, k), True: visible. A row that is padding sees nothing."""
        key = torch.arange(self.keys)
        visible = ((key >= self.first) & (key <= self.last)).expand(len(rows), -1)
        if self.offset is None:
            return visible
        position = self.positions(rows)[:, None]
        if self.causal:
            visible = visible & (key <= position)
        return visible & (position >= self.first) & (position <= self.last)


def geometry(site: SiteLike, call: int = -1, batch: int = 0) -> Geometry:
    """The geometry of a call, inferred from sixteen rows of all heads.

    Causal: no row has weight on a key after its own position. With as many queries as keys that position is the row's
    index; with earlier keys from a cache it is shifted by as much as the weights reach ahead of the index.
    """
    _, _, queries, keys = site.shape(call)
    rows = spread(queries, _PROBED)
    if not len(rows) or not keys:
        return Geometry(keys, 0, keys - 1, None, False)
    used = torch.cat([_used(weights) for _, weights in blocks(site, rows, call, batch)])  # (rows, k)
    # Where rows select scattered single keys (hard, sparsemax), zeros do not show what is hidden.
    ends = keys - 1 - used.int().flip(1).argmax(1)  # the last key of each row
    count = used.sum(1)
    in_one_piece = (ends - used.int().argmax(1) + 1 == count) | (count == 0)
    telling = bool(in_one_piece.all()) and bool((count > 1).any())
    some = used.any(0).nonzero().flatten()
    first, last = (int(some[0]), int(some[-1])) if telling and len(some) else (0, keys - 1)
    if crosses(site) or queries > keys:
        return Geometry(keys, first, last, None, False)
    seeing = used.any(1)
    ahead = int((ends - rows)[seeing].max()) if bool(seeing.any()) else 0
    if queries == keys:
        return Geometry(keys, first, last, 0, ahead <= 0)
    causal = 0 <= ahead <= keys - queries and telling
    return Geometry(keys, first, last, ahead if causal else keys - queries, causal)


def _used(weights: Tensor) -> Tensor:
    """(rows, k): where some head has weight; non-finite rows count as none."""
    return ((weights != 0) & torch.isfinite(weights).all(-1, keepdim=True)).any(0)
