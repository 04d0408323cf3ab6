"""Index tensors for a part of the (b, h, q, k) array of scores.

Masks, biases and positional scores are functions of the four indices. Each is written once, on a `Grid`, and so works
for the full array, for one strip of it and for chosen rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

Sizes = tuple[int, int, int, int]  # b, h, q, k of a request
Part = slice | Tensor  # which indices of one axis: a range or a 1-D tensor


def fits(mine: int, size: int) -> bool:
    """Whether an axis of `mine` entries broadcasts to one of `size`. (`in` fails for symbolic sizes.)"""
    return mine == 1 or mine == size


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape`, aligned at the right, broadcasts to `target` without changing it."""
    if len(shape) > len(target):
        return False
    return all(fits(mine, size) for mine, size in zip(reversed(shape), reversed(target), strict=False))


@overload
def position_shift(align: str, offset: int | None, queries: int, keys: int) -> int: ...
@overload
def position_shift(align: str, offset: int | Tensor | None, queries: int, keys: int) -> int | Tensor: ...
def position_shift(align: str, offset: int | Tensor | None, queries: int, keys: int) -> int | Tensor:
    """What to add to the index of a query to get its position. An offset replaces the alignment."""
    if offset is not None:
        return offset
    return keys - queries if align == "bottom-right" else 0


@dataclass(frozen=True)
class Grid:
    """Index tensors that broadcast to (b, h, q, k), and the sizes of the full array."""

    sizes: Sizes
    batch: Tensor  # (b,1,1,1)
    head: Tensor  # (h,1,1)
    row: Tensor  # (q,1)
    column: Tensor  # (k,)
    parts: tuple[Part, Part, Part, Part]  # the same indices as ranges or tensors

    @property
    def shift(self) -> int:
        """What to add to the index of a query to get its position: the last query aligns with the last key."""
        return self.sizes[3] - self.sizes[2]

    @property
    def position(self) -> Tensor:
        """The position of each query, (q,1)."""
        return self.row + (self.sizes[3] - self.sizes[2])

    @property
    def distance(self) -> Tensor:
        """Position of the key minus position of the query, (q,k)."""
        return self.column - self.position

    def distance_from(self, align: str, offset: int | None) -> Tensor:
        """`distance` under another alignment, or with query 0 at position `offset`."""
        return self.column - (self.row + position_shift(align, offset, self.sizes[2], self.sizes[3]))

    def pick(self, tensor: Tensor) -> Tensor:
        """The entries of `tensor` (b|1, h|1, q|1, k|1) that belong to this part, still broadcastable."""
        for axis, selected in enumerate(self.parts):
            if tensor.shape[axis] == 1:
                continue
            if isinstance(selected, slice):
                tensor = tensor.narrow(axis, selected.start, selected.stop - selected.start)
            else:
                tensor = tensor.index_select(axis, selected)
        return tensor

    def add(self, tensor: Tensor, grad: Tensor) -> None:
        """Add `grad` (b, h, q, k) of this part to the entries of `tensor` that `pick` would take."""
        for axis, selected in enumerate(self.parts[:3]):
            if tensor.shape[axis] != 1:
                assert isinstance(selected, slice)  # only the columns of a strip may have gaps
                tensor = tensor.narrow(axis, selected.start, selected.stop - selected.start)
        columns = self.parts[3]
        if isinstance(columns, Tensor) and tensor.shape[3] != 1:
            summed = grad.sum_to_size(*tensor.shape[:3], len(columns))
            tensor.index_add_(3, columns, summed.to(tensor.dtype))
        else:
            target = self.pick_columns(tensor)
            target += grad.sum_to_size(target.shape)

    def pick_columns(self, tensor: Tensor) -> Tensor:
        """The columns of this part, a view."""
        columns = self.parts[3]
        if tensor.shape[3] == 1 or not isinstance(columns, slice):
            return tensor
        return tensor.narrow(3, columns.start, columns.stop - columns.start)

    @property
    def device(self) -> torch.device:
        return self.column.device

    def part(
        self,
        *,
        batch: Part | None = None,
        heads: Part | None = None,
        rows: Part | None = None,
        columns: Part | None = None,
    ) -> Grid:
        """Some batch entries, heads, query rows and key columns of a full grid; None takes all of an axis."""
        of_batch, of_heads, of_rows, of_columns = self.parts
        return Grid(
            self.sizes,
            batch=self.batch if batch is None else self.batch[batch],
            head=self.head if heads is None else self.head[heads],
            row=self.row if rows is None else self.row[rows],
            column=self.column if columns is None else self.column[columns],
            parts=(
                of_batch if batch is None else batch,
                of_heads if heads is None else heads,
                of_rows if rows is None else rows,
                of_columns if columns is None else columns,
            ),
        )


def full_grid(sizes: Sizes, device: torch.device | str) -> Grid:
    """The grid of a complete request."""
    batch, heads, queries, keys = sizes
    return Grid(
        sizes,
        batch=torch.arange(batch, device=device).view(-1, 1, 1, 1),
        head=torch.arange(heads, device=device).view(-1, 1, 1),
        row=torch.arange(queries, device=device).view(-1, 1),
        column=torch.arange(keys, device=device),
        parts=(slice(0, batch), slice(0, heads), slice(0, queries), slice(0, keys)),
    )
