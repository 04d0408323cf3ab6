"""Masks of a call that continues from a state: they cover the positions of this call only, or all positions so far.

For a leaf with a size (padding, documents, a tensor) the size decides which. A leaf without a size (a window, lengths,
a prefix, …) always covers all positions, counted from the first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.algebra import And, Not, Or
from regard.masks.from_tensors import DocumentsMask, LengthsMask, PackedMask, PaddingMask
from regard.masks.positional import BlocksMask, CausalMask, DilatedMask, GlobalTokensMask, WindowMask
from regard.values.grid import Sizes

Ids = tuple[Tensor, ...]  # document ids (b,n) of the cached keys, one tensor for each masks.documents in the mask


def over_all_keys(mask: Mask | None, sizes: Sizes, new: int, device: torch.device, known: Ids = ()) -> Mask | None:
    """Extend a mask to all keys so far; `sizes` counts them all, and the last `new` keys are those of this call.

    A padding mask of this call hides no earlier key, because the state knows which of those are padding. A document
    mask of this call needs the ids of the earlier keys; `known` holds those of the keys that are still in the cache.
    """
    if mask is None or sizes[3] == new:
        return mask
    alike = len(known) == len(documents_of(mask, sizes[0]))
    return _Extension(sizes, new, device, iter(known if alike else ())).extended(mask)


class _Extension:
    """Extends the leaves of one mask to all keys, in order."""

    def __init__(self, sizes: Sizes, new: int, device: torch.device, known: Iterator[Tensor]) -> None:
        self.sizes, self.new, self.device, self.known = sizes, new, device, known
        self.seen = sizes[3] - new

    def extended(self, mask: Mask) -> Mask:
        """Extend a part of an intersection, which may show all earlier keys, because the state hides their padding."""
        if isinstance(mask, And):
            return And(self.extended(mask.left), self.extended(mask.right))
        if isinstance(mask, DocumentsMask):
            return self._documents(mask)
        if self._fits(mask) or not self._fits_new(mask):
            return mask
        if mask.by_key:
            return PaddingMask(self._after_visible(self._new_keys(mask)))
        if isinstance(mask, PaddingMask):
            return PaddingMask(self._after_visible(mask.keep_keys), mask.query_keep)
        if isinstance(mask, Or):
            return Or(self._exact(mask.left), self._exact(mask.right))
        if isinstance(mask, Not):
            return Not(self._exact(mask.inner))
        return self._exact(mask)

    def _exact(self, mask: Mask) -> Mask:
        """Extend a part of a union or complement, which must say exactly which earlier keys are visible."""
        if isinstance(mask, (And, Or)):
            return type(mask)(self._exact(mask.left), self._exact(mask.right))
        if isinstance(mask, Not):
            return Not(self._exact(mask.inner))
        if isinstance(mask, DocumentsMask):
            return self._documents(mask)
        if self._fits(mask) or not self._fits_new(mask):
            return mask
        raise BadValue(
            f"mask: {mask!r} is sized for the {self.new} keys of this call and does not say which of the {self.seen} "
            f"earlier keys the queries may see. Size it for all {self.sizes[3]} keys. A padding mask joined by & may "
            f"keep the size of this call."
        )

    def _documents(self, mask: DocumentsMask) -> Mask:
        """Add the document ids of the earlier keys; positions that the cache has dropped get -1, padding."""
        earlier = next(self.known, None)
        new_ids = mask.query_ids if mask.key_ids is None else mask.key_ids
        if mask.query_ids.shape[1] != self.sizes[2] or new_ids.shape[1] != self.new:
            return mask  # sized for all keys, or wrongly, which the check reports
        if earlier is None:
            raise BadValue(
                f"mask: masks.documents has ids for the {self.new} positions of this call only, and the document ids "
                f"of the {self.seen} earlier positions are unknown, because earlier calls had other masks. Pass all "
                f"{self.sizes[3]} ids as key_ids, or the same document masks with every call from the first one on."
            )
        rows = max(len(earlier), len(new_ids))
        dropped = earlier.new_full((rows, self.seen - earlier.shape[1]), -1)
        before = torch.cat([dropped, earlier.expand(rows, -1)], 1)
        return DocumentsMask(mask.query_ids, torch.cat([before, new_ids.expand(rows, -1)], 1))

    def _new_keys(self, mask: Mask) -> Tensor:
        """Return which keys of this call a mask over keys shows, (b|1,new)."""
        if isinstance(mask, And):
            return self._new_keys(mask.left) & self._new_keys(mask.right)
        if isinstance(mask, Or):
            return self._new_keys(mask.left) | self._new_keys(mask.right)
        if isinstance(mask, Not):
            return ~self._new_keys(mask.inner)
        if self._fits(mask):  # a leaf without a size counts from the first of all positions
            return mask.real_keys(self.sizes[3], self.sizes[0], self.device)[:, self.seen :]
        return mask.real_keys(self.new, self.sizes[0], self.device)

    def _after_visible(self, keep: Tensor) -> Tensor:
        return torch.cat([keep.new_ones(len(keep), self.seen), keep], 1)

    def _fits(self, mask: Mask) -> bool:
        return _fits(mask, self.sizes)

    def _fits_new(self, mask: Mask) -> bool:
        return _fits(mask, (*self.sizes[:3], self.new))


def documents_of(mask: Mask | None, batch: int) -> Ids:
    """Return the key ids (b,k) of every masks.documents in a mask, in order."""
    if isinstance(mask, (And, Or)):
        return documents_of(mask.left, batch) + documents_of(mask.right, batch)
    if isinstance(mask, Not):
        return documents_of(mask.inner, batch)
    if not isinstance(mask, DocumentsMask):
        return ()
    ids = mask.query_ids if mask.key_ids is None else mask.key_ids
    return (ids.expand(batch, -1),)


def from_query(mask: Mask | None, steps: int, sizes: Sizes) -> Mask | None:
    """Renumber the queries of a mask for a call that follows `steps` earlier queries.

    Top-left alignment and query lengths count from the first query of all calls; in the result they count from the
    first query of this call. Applying this to its own result changes nothing.
    """
    if mask is None or steps == 0:
        return mask
    return _from_query(mask, operator.index(steps), sizes)


def _from_query(mask: Mask, steps: int, sizes: Sizes) -> Mask:
    if isinstance(mask, (And, Or)):
        return type(mask)(_from_query(mask.left, steps, sizes), _from_query(mask.right, steps, sizes))
    if isinstance(mask, Not):
        return Not(_from_query(mask.inner, steps, sizes))
    if isinstance(mask, CausalMask) and mask.align == "top-left":
        return CausalMask("bottom-right", steps)
    if isinstance(mask, WindowMask) and mask.align == "top-left":
        return WindowMask(mask.before, mask.after, "bottom-right", steps)
    if isinstance(mask, LengthsMask) and mask.query_lengths is not None:
        device = mask.query_lengths.device
        queries = torch.arange(steps, steps + sizes[2], device=device) < mask.query_lengths[:, None]
        every = torch.ones(1, sizes[3], dtype=torch.bool, device=device)
        return And(LengthsMask(mask.key_lengths), PaddingMask(every, queries))
    return mask


def refuse_counting_from_the_end(mask: Mask | None) -> None:
    """Raise if a mask aligns queries with the end of the source, which is impossible in single steps."""
    if isinstance(mask, (And, Or)):
        refuse_counting_from_the_end(mask.left)
        refuse_counting_from_the_end(mask.right)
    elif isinstance(mask, Not):
        refuse_counting_from_the_end(mask.inner)
    elif isinstance(mask, (CausalMask, WindowMask)):
        if mask.align == "bottom-right" and mask.offset is None:
            raise BadValue(
                f"mask: {mask!r} aligns queries with the source's end, but a step does not know how many queries will "
                f"follow. Give it align='top-left', or the position of this call's first query as offset=."
            )
    elif isinstance(mask, (BlocksMask, DilatedMask, GlobalTokensMask, PackedMask)):
        raise BadValue(
            f"mask: {mask!r} aligns queries with the source's end, but a step does not know how many queries will "
            f"follow. Pass this call's rows of it as a bool tensor (q,k)."
        )


def _fits(mask: Mask, sizes: Sizes) -> bool:
    try:
        mask.check(sizes)
        mask.check_contents(sizes)
    except BadValue:
        return False
    return True
