"""Which keys no query may attend to, and which queries are padding: without a q×k array or synchronizing with a GPU."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from regard.masks.algebra import EMPTY, FULL, And, Mask, Or, cut
from regard.masks.from_tensors import DenseMask, DocumentsMask, LengthsMask, PaddingMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.values.grid import Sizes, full_grid
from regard.values.value import rebuild

_BLOCK = 128
_CELLS = 1 << 22  # pairs evaluated at once


def visible_keys(mask: Mask, sizes: Sizes, device: torch.device) -> Tensor | None:
    """True for the keys that some query sees, bool (b|1, h|1, k); None when every key is seen."""
    if not mask.tensors:
        visible = _seen_by_structure(mask.spec, sizes)
        return None if visible is None else visible.to(device, copy=True)  # an ordinary tensor, wherever it was cached
    if mask.by_key:
        return mask.real_keys(sizes[3], sizes[0], device)[:, None]
    if isinstance(mask, DenseMask):
        return mask.tensor.any(-2).expand(-1, -1, sizes[3])
    if isinstance(mask, And):
        for keys, partner in ((mask.left, mask.right), (mask.right, mask.left)):
            if keys.by_key:
                real, visible = (
                    keys.real_keys(sizes[3], sizes[0], device)[:, None],
                    visible_keys(partner, sizes, device),
                )
                return real if visible is None else real & visible
    return _evaluate(mask, sizes, slice(0, sizes[3]), device)


@lru_cache(maxsize=256)
def _seen_by_structure(spec: str, sizes: Sizes) -> Tensor | None:
    """`visible_keys` of a mask without tensors, on the CPU.

    A column of blocks that is full somewhere or empty, in every entry and head, says it; only others are evaluated.
    """
    mask = rebuild(spec, ())
    assert isinstance(mask, Mask)
    grades = mask.grades(cut(sizes, _BLOCK, _BLOCK, "cpu"))
    full, empty = (grades == FULL).any(2), (grades == EMPTY).all(2)  # (b|1, h|1, blocks of keys)
    blocks: list[Tensor] = []
    for block in range(grades.shape[3]):
        keys = slice(block * _BLOCK, min(sizes[3], (block + 1) * _BLOCK))
        if bool((full | empty)[..., block].all()):
            blocks.append(full[..., block, None].expand(-1, -1, keys.stop - keys.start))
        else:
            blocks.append(_evaluate(mask, sizes, keys, torch.device("cpu")))
    if all(bool(block_of_keys.all()) for block_of_keys in blocks):
        return None
    shape = torch.broadcast_shapes(*[block_of_keys.shape[:2] for block_of_keys in blocks])
    return torch.cat([block_of_keys.expand(*shape, -1) for block_of_keys in blocks], 2)


def _evaluate(mask: Mask, sizes: Sizes, keys: slice, device: torch.device) -> Tensor:
    rows = max(1, _CELLS // max(1, sizes[0] * sizes[1] * (keys.stop - keys.start)))
    visible = torch.zeros(1, 1, keys.stop - keys.start, dtype=torch.bool, device=device)
    complete = full_grid(sizes, device)
    for top in range(0, sizes[2], rows):
        grid = complete.part(rows=slice(top, min(sizes[2], top + rows)), columns=keys)
        visible = visible | mask.tile(grid).any(-2)
    return visible


def hides_queries(mask: Mask) -> bool:
    """Whether `hidden_queries` finds any tensor, without computing it."""
    if isinstance(mask, LengthsMask):
        return mask.query_lengths is not None
    if isinstance(mask, PaddingMask):
        return mask.query_keep is not None
    if isinstance(mask, And):
        return hides_queries(mask.left) or hides_queries(mask.right)
    if isinstance(mask, Or):
        return hides_queries(mask.left) and hides_queries(mask.right)
    return isinstance(mask, DocumentsMask)


def sees_itself(mask: Mask, sizes: Sizes) -> bool:
    """Whether each query that `hidden_queries` does not name is known to see a key: the one at its own position."""
    if isinstance(mask, And):
        return sees_itself(mask.left, sizes) and sees_itself(mask.right, sizes)
    if isinstance(mask, Or):
        return sees_itself(mask.left, sizes) or sees_itself(mask.right, sizes)
    if isinstance(mask, (CausalMask, WindowMask)):
        return mask.offset is None and (mask.align == "bottom-right" or sizes[2] == sizes[3]) and sizes[2] <= sizes[3]
    if isinstance(mask, DocumentsMask):
        return mask.key_ids is None and sizes[2] == sizes[3]
    return isinstance(mask, FullMask)


def hidden_queries(mask: Mask, queries: int, device: torch.device) -> Tensor | None:
    """True for the queries that a mask declares to be padding, (b|1,q); None if it declares none."""
    if isinstance(mask, LengthsMask) and mask.query_lengths is not None:
        return torch.arange(queries, device=device) >= mask.query_lengths[:, None]
    if isinstance(mask, PaddingMask) and mask.query_keep is not None:
        return ~mask.query_keep
    if isinstance(mask, DocumentsMask):
        return mask.query_ids < 0
    if isinstance(mask, (And, Or)):
        left = hidden_queries(mask.left, queries, device)
        right = hidden_queries(mask.right, queries, device)
        if left is not None and right is not None:
            return left | right if isinstance(mask, And) else left & right
        if isinstance(mask, And):
            return right if left is None else left
    return None
