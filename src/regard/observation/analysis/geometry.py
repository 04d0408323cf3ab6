"""Which keys a row could have looked at, told from the weights alone.

What stands in a mask is not asked: models hide keys in many ways, but whatever is hidden has weight 0 in every head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.observation.analysis.sites import SiteLike, blocks, crosses, spread

_PROBED = 16  # rows that are looked at


@dataclass(frozen=True)
class Geometry:
    """Where the queries stand among the keys, and which keys they see."""

    keys: int
    first: int  # the first and the last key that anybody sees: the rest is padding
    last: int
    offset: int | None  # the position of row 0 among the keys; None: queries and keys are different things
    causal: bool  # nobody sees a key behind its own position

    def positions(self, rows: Tensor) -> Tensor:
        """Where rows stand among the keys, (rows,); −1 where they have no place there."""
        return torch.full_like(rows, -1) if self.offset is None else rows + self.offset

    def visible(self, rows: Tensor) -> Tensor:
        """(rows, k), True: may be seen. A row that is padding itself sees nothing worth judging."""
        key = torch.arange(self.keys)
        seen = ((key >= self.first) & (key <= self.last)).expand(len(rows), -1)
        if self.offset is None:
            return seen
        place = self.positions(rows)[:, None]
        if self.causal:
            seen = seen & (key <= place)
        return seen & (place >= self.first) & (place <= self.last)


def geometry(site: SiteLike, call: int = -1, batch: int = 0) -> Geometry:
    """Read from sixteen rows of all heads.

    Causal: no row has weight on a key behind its own position, which is its number for as many queries as keys, and
    otherwise, with earlier keys from a cache, so far behind it as the weights of all rows reach.
    """
    _, _, queries, keys = site.shape(call)
    rows = spread(queries, _PROBED)
    if not len(rows) or not keys:
        return Geometry(keys, 0, keys - 1, None, False)
    used = torch.cat([_used(weights) for _, weights in blocks(site, rows, call, batch)])  # (rows, k)
    # Where rows choose single keys here and there (hard, sparsemax), zeros do not tell what is hidden.
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
    """(rows, k): where some head has weight. Rows that are not finite say nothing."""
    return ((weights != 0) & torch.isfinite(weights).all(-1, keepdim=True)).any(0)
