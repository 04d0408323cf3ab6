"""How layers read masks: as values, as padding of queries and keys, and as masks that ignore the query."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.biases import Bias
from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import DenseMask, DocumentsMask, LengthsMask, PaddingMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.nn.parts.masks_in_steps import over_all_keys
from regard.registry import call_meant
from regard.support.arguments import described
from regard.values.grid import Sizes, broadcasts, full_grid


def as_mask(mask: object, sizes: Sizes) -> Mask | None:
    """Convert the mask argument of a layer to a Mask. A tensor is (q,k), (b,q,k) or (b,h,q,k), True = may attend."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        hint = "A bias adds numbers to the scores and is not a mask."
        hint = hint if isinstance(mask, Bias) else call_meant(mask, "regard.masks")
        raise BadType(f"mask: expected a Mask or a bool tensor, got {described(mask)}. {hint}")
    if mask.dtype != torch.bool:
        raise BadType(
            f"mask: expected a Mask or a bool tensor (True = may attend), got {described(mask)}. A 0/1 mask becomes "
            f"bool with mask.bool(); in torch's padding masks True hides, so pass ~mask."
        )
    target = sizes if mask.dim() == 4 else (sizes[0], sizes[2], sizes[3])
    if mask.dim() < 2 or not broadcasts(mask.shape, target):
        hint = ""
        if tuple(mask.shape) == (sizes[0], sizes[3]):
            hint = " It looks like a padding mask (b,k): pass masks.padding(mask) instead."
        raise BadValue(
            f"mask: a tensor of shape {tuple(mask.shape)} does not fit (q,k), (b,q,k) or (b,h,q,k) with (b,h,q,k) = "
            f"{tuple(sizes)}.{hint}"
        )
    return DenseMask(mask[:, None] if mask.dim() == 3 else mask[(None,) * (4 - mask.dim())])


def joined(*masks: Mask | None) -> Mask | None:
    """Return the intersection of these masks; None stands for a mask that shows everything."""
    intersection: Mask | None = None
    for mask in masks:
        if mask is not None:
            intersection = mask if intersection is None else intersection & mask
    return intersection


def split_causal(mask: Mask | None) -> tuple[bool, Mask | None]:
    """Split an intersection into whether it contains `causal()`, and the rest of it."""
    if isinstance(mask, CausalMask) and mask.align == "bottom-right" and mask.offset is None:
        return True, None
    if isinstance(mask, And):
        left, right = split_causal(mask.left), split_causal(mask.right)
        return left[0] or right[0], joined(left[1], right[1])
    return False, None if isinstance(mask, FullMask) else mask


def looks_back_only(mask: Mask | None) -> bool:
    """Whether the structure of a mask shows that no query sees later keys."""
    if isinstance(mask, And):
        return looks_back_only(mask.left) or looks_back_only(mask.right)
    if isinstance(mask, WindowMask):
        return mask.after == 0 and mask.align == "bottom-right" and mask.offset is None
    return isinstance(mask, CausalMask) and mask.align == "bottom-right" and mask.offset is None


def real_sides(mask: Mask | None, sizes: Sizes, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return which queries (b|1,q) and keys (b|1,k) are not padding according to the mask; None: all of them.

    Decided from the structure of the mask, without looking at pairs of queries and keys.
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
    """Return which of the `new` source positions of this call are not padding, (b,new); None: all of them.

    For mechanisms that keep a summary instead of keys and therefore accept only masks that ignore the query. With a
    state of `seen` earlier positions, the size of a mask decides whether it covers this call only or all positions.
    """
    length = seen + new if isinstance(mask, Tensor) and mask.dim() and mask.shape[-1] != new else new
    value = as_mask(mask, (batch, 1, queries, length))
    if value is not None and not value.by_key:
        value.keep(length, batch)  # raises and explains
    value = over_all_keys(value, (batch, 1, queries, seen + new), new, device)
    if value is None:
        return None
    return value.keep(seen + new, batch)[:, seen:].to(device).expand(batch, new)


def without_padding(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Set padding in rows (b,length,dim) to zero, so that its contents are never read."""
    return rows if keep is None else rows.masked_fill(~keep[..., None], 0)


def tail(mask: Mask, sizes: Sizes, first: int, device: torch.device) -> Mask:
    """Return the mask for the keys from `first` on, renumbered from 0."""
    if first == 0:
        return mask
    if mask.by_key:
        return PaddingMask(mask.real_keys(sizes[3], sizes[0], device)[:, first:].expand(sizes[0], -1))
    return DenseMask(mask.tile(full_grid(sizes, device).part(columns=slice(first, sizes[3]))))
