"""Masks of a call that goes on from a state: they may speak of this call's positions alone, or of all so far.

A leaf that has a size says by it of which positions it speaks: padding and documents of this call, or of everything.
A leaf without a size (a window, lengths, a prefix, …) always speaks of all positions, counted from the first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.core.grid import Sizes
from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.algebra import And, Not, Or
from regard.masks.from_tensors import DocumentsMask, LengthsMask, PackedMask, PaddingMask
from regard.masks.positional import BlocksMask, CausalMask, DilatedMask, GlobalTokensMask, WindowMask

Ids = tuple[Tensor, ...]  # the ids (b,n) of the held keys, one tensor for each masks.documents of a mask


def over_all_keys(
    mask: Mask | None, sizes: Sizes, new: int, device: torch.device, known: Ids = ()
) -> Mask | None:
    """The mask over every key so far, for a request of these sizes of which the last `new` keys are this call's.

    Padding of this call hides no earlier key: a state remembers by itself which of those are real. Documents of this
    call need the ids of the earlier keys, which `known` holds for as many of the last ones as a state has kept.
    """
    if mask is None or sizes[3] == new:
        return mask
    alike = len(known) == len(documents_of(mask, sizes[0]))
    return _Lifting(sizes, new, device, iter(known if alike else ())).lifted(mask)


class _Lifting:
    """One walk through the leaves of a mask, in order."""

    def __init__(self, sizes: Sizes, new: int, device: torch.device, known: Iterator[Tensor]) -> None:
        self.sizes, self.new, self.device, self.known = sizes, new, device, known
        self.seen = sizes[3] - new

    def lifted(self, mask: Mask) -> Mask:
        """A part of an intersection: what it says of earlier keys may be left to the state."""
        if isinstance(mask, And):
            return And(self.lifted(mask.left), self.lifted(mask.right))
        if isinstance(mask, DocumentsMask):
            return self._documents(mask)
        if self._fits(mask) or not self._fits_new(mask):
            return mask
        if mask.by_key:
            return PaddingMask(self._behind_ones(self._new_keys(mask)))
        if isinstance(mask, PaddingMask):
            return PaddingMask(self._behind_ones(mask.keep_keys), mask.query_keep)
        if isinstance(mask, Or):
            return Or(self._exact(mask.left), self._exact(mask.right))
        if isinstance(mask, Not):
            return Not(self._exact(mask.inner))
        return self._exact(mask)

    def _exact(self, mask: Mask) -> Mask:
        """A part of a union or a complement, where it matters what a mask says of earlier keys."""
        if isinstance(mask, (And, Or)):
            return type(mask)(self._exact(mask.left), self._exact(mask.right))
        if isinstance(mask, Not):
            return Not(self._exact(mask.inner))
        if isinstance(mask, DocumentsMask):
            return self._documents(mask)
        if self._fits(mask) or not self._fits_new(mask):
            return mask
        raise BadValue(
            f"mask: {mask!r} is sized for the {self.new} keys of this call and leaves open which of the {self.seen} "
            f"earlier keys the queries may see. Size it for all {self.sizes[3]} keys; what only tells real positions "
            f"from padding may stay as it is if it is joined by &."
        )

    def _documents(self, mask: DocumentsMask) -> Mask:
        """The mask with the ids of all keys; ids of positions that a window has dropped no longer matter."""
        known = next(self.known, None)
        given = mask.query_ids if mask.key_ids is None else mask.key_ids
        if mask.query_ids.shape[1] != self.sizes[2] or given.shape[1] != self.new:
            return mask  # sized for all keys, or for nothing here: then the check says so
        if known is None:
            raise BadValue(
                f"mask: masks.documents with the ids of this call's {self.new} positions does not tell the documents "
                f"of the {self.seen} earlier ones, and their calls did not either. Pass all {self.sizes[3]} ids as "
                f"key_ids, or such a mask with every call from the first one on."
            )
        rows = max(len(known), len(given))
        dropped = known.new_full((rows, self.seen - known.shape[1]), -1)
        before = torch.cat([dropped, known.expand(rows, -1)], 1)
        return DocumentsMask(mask.query_ids, torch.cat([before, given.expand(rows, -1)], 1))

    def _new_keys(self, mask: Mask) -> Tensor:
        """Which of this call's keys a mask over keys shows, (b|1,new)."""
        if isinstance(mask, And):
            return self._new_keys(mask.left) & self._new_keys(mask.right)
        if isinstance(mask, Or):
            return self._new_keys(mask.left) | self._new_keys(mask.right)
        if isinstance(mask, Not):
            return ~self._new_keys(mask.inner)
        if self._fits(mask):  # a leaf without a size counts from the first of all positions
            return mask.real_keys(self.sizes[3], self.sizes[0], self.device)[:, self.seen :]
        return mask.real_keys(self.new, self.sizes[0], self.device)

    def _behind_ones(self, keep: Tensor) -> Tensor:
        return torch.cat([keep.new_ones(len(keep), self.seen), keep], 1)

    def _fits(self, mask: Mask) -> bool:
        return _fits(mask, self.sizes)

    def _fits_new(self, mask: Mask) -> bool:
        return _fits(mask, (*self.sizes[:3], self.new))


def documents_of(mask: Mask | None, batch: int) -> Ids:
    """The ids (b,k) of the keys in every masks.documents inside a mask, in order."""
    if isinstance(mask, (And, Or)):
        return documents_of(mask.left, batch) + documents_of(mask.right, batch)
    if isinstance(mask, Not):
        return documents_of(mask.inner, batch)
    if not isinstance(mask, DocumentsMask):
        return ()
    ids = mask.query_ids if mask.key_ids is None else mask.key_ids
    return (ids.expand(batch, -1),)


def from_query(mask: Mask | None, steps: int, sizes: Sizes) -> Mask | None:
    """The mask for a call before which `steps` queries came.

    Alignments at the top left and lengths of queries count from the first query of all. What comes back counts from
    the first of this call, and to ask again changes nothing.
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
    """Raise if a mask over a source places queries at the source's end, which steps cannot know."""
    if isinstance(mask, (And, Or)):
        refuse_counting_from_the_end(mask.left)
        refuse_counting_from_the_end(mask.right)
    elif isinstance(mask, Not):
        refuse_counting_from_the_end(mask.inner)
    elif isinstance(mask, (CausalMask, WindowMask)):
        if mask.align == "bottom-right" and mask.offset is None:
            raise BadValue(
                f"mask: {mask!r} is aligned at the source's end, and step by step it is not known where that is. Give "
                f"it align='top-left', or the position of this call's first query as offset=."
            )
    elif isinstance(mask, (BlocksMask, DilatedMask, GlobalTokensMask, PackedMask)):
        raise BadValue(
            f"mask: {mask!r} counts positions of queries from the source's end, and step by step it is not known where "
            f"that is. Pass this call's rows of it as a bool tensor (q,k)."
        )


def _fits(mask: Mask, sizes: Sizes) -> bool:
    try:
        mask.check(sizes)
        mask.check_contents(sizes)
    except BadValue:
        return False
    return True
