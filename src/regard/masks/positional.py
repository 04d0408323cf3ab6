"""Masks that depend only on positions: causal, window, prefix, blocks, dilated, global tokens.

Query i stands at position i + (k − q), key j at j. A block of queries × keys contains every distance between its
extremes, so these masks grade blocks exactly.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.masks.algebra import FULL, Blocks, Mask, grade
from regard.values.grid import Grid, Sizes, fits, position_shift


class FullMask(Mask):
    """Every query sees every key."""

    name: ClassVar[str] = "full"

    def visible(self, grid: Grid) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=grid.device)

    def grades(self, blocks: Blocks) -> Tensor:
        return torch.full_like(blocks.last_row - blocks.last_column, FULL, dtype=torch.int8)[None, None]

    @property
    def by_key(self) -> bool:
        return True

    @property
    def by_distance(self) -> bool:
        return True


class CausalMask(Mask):
    """A query sees its own position and all earlier ones."""

    name: ClassVar[str] = "causal"

    align: str = "bottom-right"
    offset: int | Tensor | None = None

    def visible(self, grid: Grid) -> Tensor:
        return grid.column <= grid.row + _shift(self, grid)

    def grades(self, blocks: Blocks) -> Tensor:
        distances = _distances(self, blocks)
        if distances is None:
            return super().grades(blocks)
        low, high = distances
        return grade(low <= 0, high <= 0)

    def check(self, sizes: Sizes) -> None:
        _check_offset(self, sizes)

    @property
    def by_distance(self) -> bool:
        return not isinstance(self.offset, Tensor)


class WindowMask(Mask):
    """A query sees `before` keys before itself, itself, and `after` keys after."""

    name: ClassVar[str] = "window"

    before: int
    after: int | None = None
    align: str = "bottom-right"
    offset: int | Tensor | None = None

    @property
    def reach(self) -> int:
        return self.before if self.after is None else self.after

    def visible(self, grid: Grid) -> Tensor:
        distance = grid.column - (grid.row + _shift(self, grid))
        return (distance >= -self.before) & (distance <= self.reach)

    def grades(self, blocks: Blocks) -> Tensor:
        distances = _distances(self, blocks)
        if distances is None:
            return super().grades(blocks)
        low, high = distances
        return grade((low <= self.reach) & (high >= -self.before), (high <= self.reach) & (low >= -self.before))

    def check(self, sizes: Sizes) -> None:
        _check_offset(self, sizes)

    @property
    def by_distance(self) -> bool:
        return not isinstance(self.offset, Tensor)


def _shift(mask: CausalMask | WindowMask, where: Grid | Blocks) -> int | Tensor:
    """What to add to a query's index to get its position."""
    shift = position_shift(mask.align, mask.offset, where.sizes[2], where.sizes[3])
    return where.pick(shift.view(-1, 1, 1, 1)) if isinstance(shift, Tensor) else shift


def _distances(mask: CausalMask | WindowMask, blocks: Blocks) -> tuple[Tensor, Tensor] | None:
    """The smallest and largest key position minus query position in each block; None if it may not be read."""
    if isinstance(mask.offset, Tensor) and not blocks.read_tensors:
        return None
    shift = _shift(mask, blocks)
    low = blocks.first_column - (blocks.last_row + shift)
    high = blocks.last_column - (blocks.first_row + shift)
    return _four(low), _four(high)


def _check_offset(mask: CausalMask | WindowMask, sizes: Sizes) -> None:
    if isinstance(mask.offset, Tensor) and not fits(len(mask.offset), sizes[0]):
        raise BadValue(
            f"mask: the offset of {mask!r} has {len(mask.offset)} entries but the batch is {sizes[0]}. "
            f"Pass one int, or one entry per batch element."
        )


class PrefixMask(Mask):
    """Every query sees the first n keys."""

    name: ClassVar[str] = "prefix"

    n: int | Tensor

    def visible(self, grid: Grid) -> Tensor:
        return grid.column < self._length(grid)

    def grades(self, blocks: Blocks) -> Tensor:
        if isinstance(self.n, Tensor) and not blocks.read_tensors:
            return super().grades(blocks)
        length = self._length(blocks)
        rows = torch.zeros_like(blocks.first_row)  # gives every row of blocks the same grades
        return _four(grade(blocks.first_column + rows < length, blocks.last_column + rows < length))

    def check(self, sizes: Sizes) -> None:
        if isinstance(self.n, Tensor) and not fits(len(self.n), sizes[0]):
            raise BadValue(f"mask: {self!r} has {len(self.n)} lengths but the batch is {sizes[0]}.")

    @property
    def by_key(self) -> bool:
        return True

    def _length(self, where: Grid | Blocks) -> int | Tensor:
        return where.pick(self.n.view(-1, 1, 1, 1)) if isinstance(self.n, Tensor) else self.n


class BlocksMask(Mask):
    """A query sees the keys of its own block of `size` positions."""

    name: ClassVar[str] = "blocks"

    size: int

    def visible(self, grid: Grid) -> Tensor:
        return grid.position // self.size == grid.column // self.size

    def grades(self, blocks: Blocks) -> Tensor:
        first_q = (blocks.first_row + blocks.shift) // self.size
        last_q = (blocks.last_row + blocks.shift) // self.size
        first_k, last_k = blocks.first_column // self.size, blocks.last_column // self.size
        touching = (first_q <= last_k) & (first_k <= last_q)
        return _four(grade(touching, (first_q == last_k) & (last_q == first_k)))


class DilatedMask(Mask):
    """A query sees the keys whose distance is divisible by `step`."""

    name: ClassVar[str] = "dilated"

    step: int

    def visible(self, grid: Grid) -> Tensor:
        return grid.distance % self.step == 0

    def grades(self, blocks: Blocks) -> Tensor:
        low = blocks.first_column - (blocks.last_row + blocks.shift)
        high = blocks.last_column - (blocks.first_row + blocks.shift)
        some = high - high % self.step >= low  # the largest multiple that is not above `high`
        return _four(grade(some, (low == high) if self.step > 1 else torch.ones_like(some)))

    @property
    def by_distance(self) -> bool:
        return True


class GlobalTokensMask(Mask):
    """Chosen positions see everything and are seen by everything."""

    name: ClassVar[str] = "global_tokens"

    index: tuple[int, ...]

    def visible(self, grid: Grid) -> Tensor:
        return self.chosen(grid.position) | self.chosen(grid.column)

    def chosen(self, position: Tensor) -> Tensor:
        """True at the chosen positions."""
        chosen = torch.zeros_like(position, dtype=torch.bool)
        for index in self.index:
            chosen = chosen | (position == index)
        return chosen

    def grades(self, blocks: Blocks) -> Tensor:
        rows = self._count(blocks.first_row + blocks.shift, blocks.last_row + blocks.shift)
        columns = self._count(blocks.first_column, blocks.last_column)
        every_row = rows == blocks.last_row - blocks.first_row + 1
        every_column = columns == blocks.last_column - blocks.first_column + 1
        return _four(grade((rows > 0) | (columns > 0), every_row | every_column))

    def _count(self, first: Tensor, last: Tensor) -> Tensor:
        """How many of the chosen positions lie in first..last."""
        index = torch.tensor(self.index, device=first.device, dtype=first.dtype)
        below = torch.searchsorted(index, first.contiguous())
        return torch.searchsorted(index, last.contiguous(), right=True) - below


def _four(grades: Tensor) -> Tensor:
    return grades[(None,) * (4 - grades.dim())]
