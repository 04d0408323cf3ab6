"""Masks that hold tensors: lengths, padding, documents, packed sequences, a dense tensor.

They copy their tensors when built. `grades` reads those tensors, block by block and never q×k, if it may.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.masks.algebra import Blocks, Mask, grade
from regard.support.arguments import readable
from regard.support.differentiate import transforming
from regard.values.grid import Grid, Sizes, broadcasts, fits


class LengthsMask(Mask):
    """Batch entry b has `key_lengths[b]` real keys and, where given, `query_lengths[b]` real queries."""

    name: ClassVar[str] = "lengths"

    key_lengths: Tensor
    query_lengths: Tensor | None = None

    def visible(self, grid: Grid) -> Tensor:
        visible = grid.column < grid.pick(self.key_lengths.view(-1, 1, 1, 1))
        if self.query_lengths is None:
            return visible
        return visible & (grid.row < grid.pick(self.query_lengths.view(-1, 1, 1, 1)))

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        keys = self.key_lengths.view(-1, 1, 1, 1)
        queries = (
            torch.full_like(keys, blocks.sizes[2], dtype=torch.int64)
            if self.query_lengths is None
            else self.query_lengths.view(-1, 1, 1, 1)
        )
        some = (blocks.first_column < keys) & (blocks.first_row < queries)
        return grade(some, (blocks.last_column < keys) & (blocks.last_row < queries))

    def check(self, sizes: Sizes) -> None:
        for argument, lengths in (("key_lengths", self.key_lengths), ("query_lengths", self.query_lengths)):
            if lengths is not None and not fits(lengths.shape[0], sizes[0]):
                raise BadValue(
                    f"mask: {argument} has {len(lengths)} entries but the batch is {sizes[0]}. "
                    f"Pass one length per batch entry."
                )

    @property
    def by_key(self) -> bool:
        return self.query_lengths is None

    def real_keys(self, k: int, batch: int, device: torch.device | str) -> Tensor:
        return torch.arange(k, device=device) < self.key_lengths[:, None]


class PaddingMask(Mask):
    """True marks the real keys of `keep` (b,k) and, where given, the real queries of `query_keep` (b,q)."""

    name: ClassVar[str] = "padding"

    keep_keys: Tensor
    query_keep: Tensor | None = None

    def visible(self, grid: Grid) -> Tensor:
        visible = grid.pick(self.keep_keys[:, None, None, :])
        return visible if self.query_keep is None else visible & grid.pick(self.query_keep[:, None, :, None])

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        some, every = _reduce(self.keep_keys, blocks.block_k)
        some, every = some[:, None, None, :], every[:, None, None, :]
        rows = torch.ones_like(blocks.first_row, dtype=torch.bool)
        some_query = every_query = rows
        if self.query_keep is not None:
            reduced = _reduce(self.query_keep, blocks.block_q)
            some_query, every_query = reduced[0][:, None, :, None], reduced[1][:, None, :, None]
        return grade(some & some_query, every & every_query)

    def check(self, sizes: Sizes) -> None:
        named = (("keep", self.keep_keys, "k", sizes[3]), ("query_keep", self.query_keep, "q", sizes[2]))
        for argument, keep, letter, length in named:
            if keep is not None and (not fits(keep.shape[0], sizes[0]) or keep.shape[1] != length):
                raise BadValue(
                    f"mask: {argument} of masks.padding has shape {tuple(keep.shape)}, "
                    f"expected (b,{letter}) = ({sizes[0]}, {length})."
                )

    @property
    def by_key(self) -> bool:
        return self.query_keep is None

    def real_keys(self, k: int, batch: int, device: torch.device | str) -> Tensor:
        return self.keep_keys


class DocumentsMask(Mask):
    """A query sees the keys that carry its own id; a negative id is padding."""

    name: ClassVar[str] = "documents"

    query_ids: Tensor
    key_ids: Tensor | None = None

    def visible(self, grid: Grid) -> Tensor:
        queries, keys = self._ids()
        mine = grid.pick(queries[:, None, :, None])
        return (mine == grid.pick(keys[:, None, None, :])) & (mine >= 0)

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        queries, keys = self._ids()
        low_q, high_q = _extremes(queries, blocks.block_q)
        low_k, high_k = _extremes(keys, blocks.block_k)
        low_q, high_q = low_q[:, None, :, None], high_q[:, None, :, None]
        low_k, high_k = low_k[:, None, None, :], high_k[:, None, None, :]
        some = (low_q <= high_k) & (low_k <= high_q) & (high_q >= 0) & (high_k >= 0)
        return grade(some, (low_q == high_q) & (low_k == high_k) & (low_q == low_k))

    def check(self, sizes: Sizes) -> None:
        queries, keys = self._ids()
        if self.key_ids is None and sizes[2] != sizes[3]:
            raise BadValue(
                f"mask: masks.documents(query_ids) without key_ids needs as many queries as keys, got q={sizes[2]} and "
                f"k={sizes[3]}. Pass key_ids too."
            )
        for argument, ids, length in (("query_ids", queries, sizes[2]), ("key_ids", keys, sizes[3])):
            if not fits(ids.shape[0], sizes[0]) or ids.shape[1] != length:
                raise BadValue(
                    f"mask: {argument} of masks.documents has shape {tuple(ids.shape)}, "
                    f"expected (b, length) = ({sizes[0]}, {length})."
                )

    def _ids(self) -> tuple[Tensor, Tensor]:
        return self.query_ids, self.query_ids if self.key_ids is None else self.key_ids


class PackedMask(Mask):
    """Concatenated documents: document n covers positions offsets[n] … offsets[n+1] − 1."""

    name: ClassVar[str] = "packed"

    offsets: Tensor

    def visible(self, grid: Grid) -> Tensor:
        mine, theirs = self.document(grid.position), self.document(grid.column)
        return (mine == theirs) & (mine >= 0)

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        # Ids rise with the position, so that the ends of a block bound it; outside of all documents they are −1.
        low_q, high_q = (self._rising(blocks.first_row + blocks.shift), self._rising(blocks.last_row + blocks.shift))
        low_k, high_k = self._rising(blocks.first_column), self._rising(blocks.last_column)
        last = len(self.offsets) - 2
        some = (low_q <= high_k) & (low_k <= high_q) & (high_q >= 0) & (high_k >= 0) & (low_q <= last) & (low_k <= last)
        return grade(some, (low_q == high_q) & (low_k == high_k) & (low_q == low_k))[None, None]

    def check_contents(self, sizes: Sizes) -> None:
        if readable(self.offsets) and int(self.offsets[-1]) > sizes[3]:
            raise BadValue(
                f"mask: the offsets of masks.packed end at {int(self.offsets[-1])} but there are {sizes[3]} keys. "
                f"They are cumulative lengths, from 0 to at most the number of keys."
            )

    def _rising(self, position: Tensor) -> Tensor:
        if transforming():  # torch's function warns under vmap
            return (position[..., None] >= self.offsets).sum(-1) - 1
        return torch.bucketize(position.contiguous(), self.offsets, right=True) - 1

    def document(self, position: Tensor) -> Tensor:
        """The number of the document at each position, −1 outside of all documents."""
        document = self._rising(position)
        return torch.where(document > len(self.offsets) - 2, -1, document)


class DenseMask(Mask):
    """A bool tensor, stored with four axes (b|1, h|1, q|1, k|1)."""

    name: ClassVar[str] = "dense"

    tensor: Tensor

    def visible(self, grid: Grid) -> Tensor:
        return grid.pick(self.tensor)

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        some, every = self.tensor, self.tensor
        for axis, size in ((-1, blocks.block_k), (-2, blocks.block_q)):
            if self.tensor.shape[axis] != 1:
                some = _reduce(some.transpose(axis, -1), size)[0].transpose(axis, -1)
                every = _reduce(every.transpose(axis, -1), size)[1].transpose(axis, -1)
        every_block = torch.ones_like(blocks.first_row + blocks.first_column, dtype=torch.bool)
        return grade(some & every_block, every & every_block)

    def check(self, sizes: Sizes) -> None:
        if not broadcasts(self.tensor.shape, sizes):
            raise BadValue(
                f"mask: a tensor of shape {tuple(self.tensor.shape)} does not broadcast to (b,h,q,k) = {tuple(sizes)}."
            )

    def single_head(self) -> Mask:
        return DenseMask(self.tensor.transpose(0, 1)) if self.tensor.shape[0] == 1 else self

    @property
    def by_key(self) -> bool:
        return self.tensor.shape[1] == 1 and self.tensor.shape[2] == 1


def dense_mask(tensor: Tensor) -> DenseMask:
    """A bool tensor, right-aligned to (b,h,q,k), as a mask; not copied."""
    return DenseMask(tensor[(None,) * (4 - tensor.dim())])


def _blocked(tensor: Tensor, size: int, filler: int | bool) -> Tensor:
    """(…, length) as (…, blocks, size), the last block padded with `filler`."""
    # Not by `pad`, which takes a float and so cannot represent the largest int64.
    filling = tensor.new_full((*tensor.shape[:-1], -tensor.shape[-1] % size), filler)
    filled = torch.cat([tensor, filling], -1)
    return filled.reshape(*filled.shape[:-1], filled.shape[-1] // size, size)


def _reduce(keep: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """For each block of `size` along the last axis: is anything kept, is everything kept."""
    return _blocked(keep, size, False).any(-1), _blocked(keep, size, True).all(-1)


def _extremes(ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The smallest and largest id of each block of `size` along the last axis."""
    limits = torch.iinfo(ids.dtype)
    return _blocked(ids, size, limits.max).amin(-1), _blocked(ids, size, limits.min).amax(-1)
