"""Masks as layers see them: what a layer may be given, and what each kind of mechanism needs of it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.arguments import described
from regard.biases import Bias
from regard.errors import BadType, BadValue
from regard.grid import Sizes, broadcasts, whole
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.given import Dense, Padding
from regard.masks.positional import Causal, Full, Window


def as_mask(mask: object, sizes: Sizes) -> Mask | None:
    """The mask a layer was given, as a value. A raw tensor is (q,k), (b,q,k) or (b,h,q,k), True = may attend."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        hint = "Numbers to add to the scores are no mask." if isinstance(mask, Bias) else "See regard.masks."
        raise BadType(f"mask: expected a Mask or a bool tensor, got {described(mask)}. {hint}")
    if mask.dtype != torch.bool:
        raise BadType(
            f"mask: expected a Mask or a bool tensor (True = may attend), got {described(mask)}. A 0/1 mask becomes "
            f"bool with mask.bool(); of torch's padding masks, in which True hides, take the opposite."
        )
    target = sizes if mask.dim() == 4 else (sizes[0], sizes[2], sizes[3])
    if mask.dim() < 2 or not broadcasts(mask.shape, target):
        hint = ""
        if tuple(mask.shape) == (sizes[0], sizes[3]):
            hint = " It looks like (b,k), which tells real positions from padding: pass masks.padding(mask) instead."
        raise BadValue(
            f"mask: a tensor of shape {tuple(mask.shape)} does not fit (q,k), (b,q,k) or (b,h,q,k) with (b,h,q,k) = "
            f"{tuple(sizes)}.{hint}"
        )
    return Dense(mask[:, None] if mask.dim() == 3 else mask[(None,) * (4 - mask.dim())])


def joined(*masks: Mask | None) -> Mask | None:
    """What all of these masks let through; None stands for everything."""
    found: Mask | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found & mask
    return found


def split_causal(mask: Mask | None) -> tuple[bool, Mask | None]:
    """Whether `causal()` is one of the masks that were joined by &, and what is left without it."""
    if isinstance(mask, Causal) and mask.align == "bottom-right" and mask.offset is None:
        return True, None
    if isinstance(mask, And):
        left, right = split_causal(mask.left), split_causal(mask.right)
        return left[0] or right[0], joined(left[1], right[1])
    return False, None if isinstance(mask, Full) else mask


def looks_back_only(mask: Mask | None) -> bool:
    """Whether a mask lets no query see what comes after it, as far as its structure tells."""
    if isinstance(mask, And):
        return looks_back_only(mask.left) or looks_back_only(mask.right)
    if isinstance(mask, Window):
        return mask.after == 0 and mask.align == "bottom-right" and mask.offset is None
    return isinstance(mask, Causal) and mask.align == "bottom-right" and mask.offset is None


def real_positions(mask: Mask | None, batch: int, length: int, device: torch.device) -> Tensor | None:
    """True for positions that are not padding, (b|1, length), from the parts of a mask that ignore the query."""
    if mask is None:
        return None
    if mask.by_key:
        return mask.real_keys(length, batch, device)
    if isinstance(mask, And):
        left = real_positions(mask.left, batch, length, device)
        right = real_positions(mask.right, batch, length, device)
        return right if left is None else left if right is None else left & right
    return None


def kept(
    mask: Mask | Tensor | None, batch: int, queries: int, new: int, seen: int, device: torch.device
) -> Tensor | None:
    """True where one of the `new` source positions of this call is real, (b,new); None: all are.

    For mechanisms that keep a summary instead of keys, and so can use only masks that ignore the query. With a state,
    in which `seen` positions came before, a mask speaks of this call's positions or of all of them, as its size says.
    """
    length = seen + new if isinstance(mask, Tensor) and mask.dim() and mask.shape[-1] != new else new
    value = as_mask(mask, (batch, 1, queries, length))
    if value is None:
        return None
    if seen and _fits(value, (batch, 1, queries, seen + new)):
        return value.keep(seen + new, batch)[:, seen:].to(device).expand(batch, new)
    return value.keep(new, batch).to(device).expand(batch, new)


def without_padding(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Rows (b,length,dim) with those that are not real set to zero, so that nothing in them is ever read."""
    return rows if keep is None else rows.masked_fill(~keep[..., None], 0)


def tail(mask: Mask, sizes: Sizes, first: int, device: torch.device) -> Mask:
    """The mask for keys `first` and later of a request of these sizes, renumbered from 0."""
    if first == 0:
        return mask
    if mask.by_key:
        return Padding(mask.real_keys(sizes[3], sizes[0], device)[:, first:].expand(sizes[0], -1))
    return Dense(mask.tile(whole(sizes, device).part(columns=slice(first, sizes[3]))))


def for_all_keys(mask: Mask | None, sizes: Sizes, new: int) -> Mask | None:
    """A mask over every key seen so far. One that fits only this call's `new` keys says nothing of the others."""
    if mask is None or sizes[3] == new or not mask.by_key or _fits(mask, sizes):
        return mask
    keep = mask.keep(new, sizes[0]).expand(sizes[0], new)
    return Padding(torch.cat([keep.new_ones(sizes[0], sizes[3] - new), keep], 1))


def _fits(mask: Mask, sizes: Sizes) -> bool:
    try:
        mask.check(sizes)
    except BadValue:
        return False
    return True
