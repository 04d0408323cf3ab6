"""Masks as layers see them: what a layer may be given, and what each kind of mechanism needs of it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.biases import Bias
from regard.core.arguments import described
from regard.core.grid import Sizes, broadcasts, whole
from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import DenseMask, DocumentsMask, LengthsMask, PaddingMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.nn.masks_in_steps import over_all_keys
from regard.registry import call_meant


def as_mask(mask: object, sizes: Sizes) -> Mask | None:
    """The mask a layer was given, as a value. A raw tensor is (q,k), (b,q,k) or (b,h,q,k), True = may attend."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        hint = "Numbers to add to the scores are no mask."
        hint = hint if isinstance(mask, Bias) else call_meant(mask, "regard.masks")
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
    return DenseMask(mask[:, None] if mask.dim() == 3 else mask[(None,) * (4 - mask.dim())])


def joined(*masks: Mask | None) -> Mask | None:
    """What all of these masks let through; None stands for everything."""
    found: Mask | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found & mask
    return found


def split_causal(mask: Mask | None) -> tuple[bool, Mask | None]:
    """Whether `causal()` is one of the masks that were joined by &, and what is left without it."""
    if isinstance(mask, CausalMask) and mask.align == "bottom-right" and mask.offset is None:
        return True, None
    if isinstance(mask, And):
        left, right = split_causal(mask.left), split_causal(mask.right)
        return left[0] or right[0], joined(left[1], right[1])
    return False, None if isinstance(mask, FullMask) else mask


def looks_back_only(mask: Mask | None) -> bool:
    """Whether a mask lets no query see what comes after it, as far as its structure tells."""
    if isinstance(mask, And):
        return looks_back_only(mask.left) or looks_back_only(mask.right)
    if isinstance(mask, WindowMask):
        return mask.after == 0 and mask.align == "bottom-right" and mask.offset is None
    return isinstance(mask, CausalMask) and mask.align == "bottom-right" and mask.offset is None


def real_sides(mask: Mask | None, sizes: Sizes, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """True for the queries (b|1,q) and for the keys (b|1,k) that a mask does not hide altogether; None: no such.

    By structure: masks that say of both sides what is real are taken apart, of others only what ignores the query.
    """
    if isinstance(mask, And):
        left, right = real_sides(mask.left, sizes, device), real_sides(mask.right, sizes, device)
        return _both(left[0], right[0]), _both(left[1], right[1])
    if isinstance(mask, PaddingMask):
        return mask.query_keep, mask.keep_keys
    if isinstance(mask, LengthsMask):
        queries = mask.query_lengths
        keys = torch.arange(sizes[3], device=device) < mask.key_lengths[:, None]
        return None if queries is None else torch.arange(sizes[2], device=device) < queries[:, None], keys
    if isinstance(mask, DocumentsMask):
        return mask.query_ids >= 0, (mask.query_ids if mask.key_ids is None else mask.key_ids) >= 0
    if mask is not None and mask.by_key:
        return None, mask.real_keys(sizes[3], sizes[0], device)
    return None, None


def _both(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    return right if left is None else left if right is None else left & right


def kept(
    mask: Mask | Tensor | None, batch: int, queries: int, new: int, seen: int, device: torch.device
) -> Tensor | None:
    """True where one of the `new` source positions of this call is real, (b,new); None: all are.

    For mechanisms that keep a summary instead of keys, and so can use only masks that ignore the query. With a state,
    in which `seen` positions came before, a mask speaks of this call's positions or of all of them, as its size says.
    """
    length = seen + new if isinstance(mask, Tensor) and mask.dim() and mask.shape[-1] != new else new
    value = as_mask(mask, (batch, 1, queries, length))
    if value is not None and not value.by_key:
        value.keep(length, batch)  # says why not
    value = over_all_keys(value, (batch, 1, queries, seen + new), new, device)
    if value is None:
        return None
    return value.keep(seen + new, batch)[:, seen:].to(device).expand(batch, new)


def without_padding(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Rows (b,length,dim) with those that are not real set to zero, so that nothing in them is ever read."""
    return rows if keep is None else rows.masked_fill(~keep[..., None], 0)


def tail(mask: Mask, sizes: Sizes, first: int, device: torch.device) -> Mask:
    """The mask for keys `first` and later of a request of these sizes, renumbered from 0."""
    if first == 0:
        return mask
    if mask.by_key:
        return PaddingMask(mask.real_keys(sizes[3], sizes[0], device)[:, first:].expand(sizes[0], -1))
    return DenseMask(mask.tile(whole(sizes, device).part(columns=slice(first, sizes[3]))))
