"""The base class of masks, and their algebra: `a & b`, `a | b`, `~a`.

A mask is a predicate on (batch, head, query, key). It never needs the q×k array: it is evaluated on a part of the grid,
and its structure says which blocks of the array are empty, full or partial (its *grades*).
With EMPTY, PARTIAL, FULL = 0, 1, 2 the algebra of blocks is minimum, maximum and `2 − x`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.values.grid import Grid, Sizes, full_grid
from regard.values.value import Value

EMPTY, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True)
class Blocks:
    """The q×k array cut into blocks: the first and last query and key of each, both ends included."""

    sizes: Sizes
    block_q: int
    block_k: int
    first_row: Tensor  # (nq,1)
    last_row: Tensor
    first_column: Tensor  # (nk,)
    last_column: Tensor
    read_tensors: bool  # False: a mask may not read its tensors (on a GPU that would synchronize)

    def pick(self, tensor: Tensor) -> Tensor:
        """`tensor` itself: blocks always cover every batch entry and head."""
        return tensor

    @property
    def shift(self) -> int:
        return self.sizes[3] - self.sizes[2]

    @property
    def device(self) -> torch.device:
        return self.first_row.device


def cut(sizes: Sizes, block_q: int, block_k: int, device: torch.device | str, read_tensors: bool = True) -> Blocks:
    """Cut the array into blocks of block_q × block_k; the last ones may be smaller."""
    rows = torch.arange(0, sizes[2], block_q, device=device).view(-1, 1)
    columns = torch.arange(0, sizes[3], block_k, device=device)
    last_row = (rows + (block_q - 1)).clamp(max=sizes[2] - 1)
    last_column = (columns + (block_k - 1)).clamp(max=sizes[3] - 1)
    return Blocks(sizes, block_q, block_k, rows, last_row, columns, last_column, read_tensors)


def grade(some: Tensor, every: Tensor) -> Tensor:
    """EMPTY where nothing of a block is visible, FULL where all of it is, PARTIAL between."""
    return some.to(torch.int8) + (some & every).to(torch.int8)


class Mask(Value):
    """Which keys each query may attend to. Build one with the functions of `regard.masks`."""

    namespace: ClassVar[str] = "masks"
    name: ClassVar[str] = "mask"

    def visible(self, grid: Grid) -> Tensor:
        """True where a query may attend to a key; broadcasts to the grid's (b, h, q, k)."""
        raise NotImplementedError(f"{type(self).__name__} does not define visible(grid)")

    def tile(self, grid: Grid) -> Tensor:
        """`visible` with four axes, (b|1, h|1, q, k)."""
        visible = self.visible(grid)
        return visible[(None,) * (4 - visible.dim())].expand(-1, -1, grid.row.shape[0], grid.column.shape[0])

    def grades(self, blocks: Blocks) -> Tensor:
        """EMPTY, PARTIAL or FULL for each block, int8 (b|1, h|1, nq, nk). PARTIAL is always allowed."""
        shape = (1, 1, len(blocks.first_row), len(blocks.first_column))
        return torch.full(shape, PARTIAL, dtype=torch.int8, device=blocks.device)

    def ends(self, sizes: Sizes, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """For a mask in which each query sees one run of keys: its first key and the one after its last, (b|1,h|1,q).

        A user-defined mask that defines this runs in fused kernels, too. Runs may differ by head and by batch entry.
        """
        return None

    def check(self, sizes: Sizes) -> None:
        """Raise when the structure of this mask does not fit a request of these sizes; called once for each plan."""

    def check_contents(self, sizes: Sizes) -> None:
        """Raise when the contents of its tensors do not fit, if they can be read; called in every call."""

    def single_head(self) -> Mask:
        """The same mask for inputs without a head axis, where a dense (x,q,k) tensor means (b,q,k)."""
        return self

    @property
    def by_key(self) -> bool:
        """Whether visibility depends only on the key (and the batch entry)."""
        return False

    @property
    def by_distance(self) -> bool:
        """Whether visibility depends only on the distance of key and query, in each head: blocks along a diagonal are
        equal."""
        return False

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return self.inner if isinstance(self, Not) else Not(self)

    def dense(self, q: int, k: int, batch: int = 1, heads: int = 1, device: torch.device | str | None = None) -> Tensor:
        """The mask as a bool tensor (b|1, h|1, q, k); the leading axes stay 1 unless a leaf depends on them."""
        sizes = (batch, heads, q, k)
        self.check(sizes)
        self.check_contents(sizes)
        mask = self if device is None else self.to(device)
        return mask.tile(full_grid(sizes, mask._device(device))).clone()

    def keep(self, k: int, batch: int = 1) -> Tensor:
        """The mask as a bool tensor over keys, (b|1, k): True = real. Only for masks that ignore the query."""
        if not self.by_key:
            raise BadValue(
                f"mask: {self!r} depends on the query, so it has no keep(k). Expected a mask over keys only, such "
                f"as masks.lengths(key_lengths) or masks.padding(keep); joins of such masks work too."
            )
        self.check((batch, 1, k, k))
        return self.real_keys(k, batch, self._device(None)).clone()

    def real_keys(self, k: int, batch: int, device: torch.device | str) -> Tensor:
        """`keep` without checks or a copy, for a mask that is `by_key`."""
        return self.tile(full_grid((batch, 1, 1, k), device))[:, 0, 0]  # all queries see the same keys

    def classify(self, q: int, k: int, block_q: int, block_k: int, batch: int = 1, heads: int = 1) -> Tensor:
        """Which blocks are EMPTY, PARTIAL or FULL, int8 (b|1, h|1, nq, nk), without a q×k array."""
        sizes = (batch, heads, q, k)
        self.check(sizes)
        self.check_contents(sizes)
        return self.grades(cut(sizes, block_q, block_k, self._device(None)))

    def _device(self, device: torch.device | str | None) -> torch.device | str:
        return device or (self.tensors[0].device if self.tensors else "cpu")


class _Pair(Mask):
    name: ClassVar[str] = "pair"
    left: Mask
    right: Mask

    def check(self, sizes: Sizes) -> None:
        self.left.check(sizes)
        self.right.check(sizes)

    def check_contents(self, sizes: Sizes) -> None:
        self.left.check_contents(sizes)
        self.right.check_contents(sizes)

    def single_head(self) -> Mask:
        return type(self)(self.left.single_head(), self.right.single_head())

    @property
    def by_key(self) -> bool:
        return self.left.by_key and self.right.by_key

    @property
    def by_distance(self) -> bool:
        return self.left.by_distance and self.right.by_distance


class And(_Pair):
    """Visible where both are."""

    name: ClassVar[str] = "and"

    def visible(self, grid: Grid) -> Tensor:
        return self.left.visible(grid) & self.right.visible(grid)

    def grades(self, blocks: Blocks) -> Tensor:
        return torch.minimum(self.left.grades(blocks), self.right.grades(blocks))

    def __repr__(self) -> str:
        # Brackets around a right side that is itself a join, so that eval gives the same tree.
        return f"{_bracket(self.left, Or)} & {_bracket(self.right, _Pair)}"


class Or(_Pair):
    """Visible where either is."""

    name: ClassVar[str] = "or"

    def visible(self, grid: Grid) -> Tensor:
        return self.left.visible(grid) | self.right.visible(grid)

    def grades(self, blocks: Blocks) -> Tensor:
        return torch.maximum(self.left.grades(blocks), self.right.grades(blocks))

    def __repr__(self) -> str:
        return f"{self.left!r} | {_bracket(self.right, Or)}"


class Not(Mask):
    """Visible where the other is not."""

    name: ClassVar[str] = "not"
    inner: Mask

    def visible(self, grid: Grid) -> Tensor:
        return ~self.inner.visible(grid)

    def grades(self, blocks: Blocks) -> Tensor:
        return FULL - self.inner.grades(blocks)

    def check(self, sizes: Sizes) -> None:
        self.inner.check(sizes)

    def check_contents(self, sizes: Sizes) -> None:
        self.inner.check_contents(sizes)

    def single_head(self) -> Mask:
        return Not(self.inner.single_head())

    @property
    def by_key(self) -> bool:
        return self.inner.by_key

    @property
    def by_distance(self) -> bool:
        return self.inner.by_distance

    def __repr__(self) -> str:
        return f"~{_bracket(self.inner, _Pair)}"


def _bracket(mask: Mask, kind: type[Mask]) -> str:
    return f"({mask!r})" if isinstance(mask, kind) else repr(mask)
