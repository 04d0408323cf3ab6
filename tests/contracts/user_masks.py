"""Masks as a user might write them: what they show differs between heads or batch entries, with and without tensors."""

from typing import ClassVar

import torch

from regard import masks
from regard.masks.algebra import grade


def axes(sizes, device):
    """Indices of the batch entry, the head and the query, as `ends` broadcasts them: (b,1,1), (h,1), (q,)."""
    batch, heads, queries, _ = sizes
    return [
        torch.arange(count, device=device).view(-1, *[1] * after)
        for count, after in zip((batch, heads, queries), (2, 1, 0), strict=True)
    ]


class Runs(masks.Mask):
    """Query i of head m in entry n sees `width` keys from 2n + 5m + i % 3 on. It knows no blocks."""

    name: ClassVar[str] = "runs"
    width: int

    def visible(self, grid):
        away = grid.column - (2 * grid.batch + 5 * grid.head + grid.row % 3)
        return (away >= 0) & (away < self.width)

    def ends(self, sizes, device):
        batch, head, row = axes(sizes, device)
        first = 2 * batch + 5 * head + row % 3
        return first, first + self.width

    def sees(self, n, m, i, j):
        """The same, pair by pair."""
        return 0 <= j - (2 * n + 5 * m + i % 3) < self.width


class HeadWindows(masks.Mask):
    """Head m sees the positions at most 1 + `step`·m away: blocks along a diagonal are equal, heads are not."""

    name: ClassVar[str] = "head-windows"
    step: int

    by_distance: ClassVar[bool] = True

    def visible(self, grid):
        return grid.distance.abs() <= 1 + self.step * grid.head

    def grades(self, blocks):
        reach = 1 + self.step * torch.arange(blocks.sizes[1], device=blocks.device).view(-1, 1, 1)
        low = blocks.first_column - (blocks.last_row + blocks.shift)
        high = blocks.last_column - (blocks.first_row + blocks.shift)
        return grade((low <= reach) & (high >= -reach), (low >= -reach) & (high <= reach))[None]

    def ends(self, sizes, device):
        _, head, row = axes(sizes, device)
        position, reach = row + sizes[3] - sizes[2], 1 + self.step * head
        return (position - reach)[None], (position + reach + 1)[None]

    def sees(self, m, away):
        """The same, pair by pair: whether head m sees a position so far away."""
        return abs(away) <= 1 + self.step * m


class Begins(masks.Mask):
    """Head m sees the keys from `first[m]` on, which a tensor says. It knows no blocks."""

    name: ClassVar[str] = "begins"
    first: torch.Tensor

    def visible(self, grid):
        return grid.column >= grid.pick(self.first.view(1, -1, 1, 1))

    def ends(self, sizes, device):
        low = self.first.view(1, -1, 1).expand(1, -1, sizes[2])
        return low, torch.full_like(low, sizes[3])
