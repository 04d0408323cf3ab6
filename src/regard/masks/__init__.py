"""Masks: which keys each query may attend to. True means may attend.

    >>> from regard import masks
    >>> masks.causal() & masks.window(3, 0) | masks.global_tokens([0])
    masks.causal() & masks.window(3, after=0) | masks.global_tokens((0,))

Query i stands at position i + (k − q) and key j at j: the last query aligns with the last key.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.masks.algebra import EMPTY, FULL, PARTIAL, Mask
from regard.masks.from_tensors import DocumentsMask, LengthsMask, PackedMask, PaddingMask, dense_mask
from regard.masks.positional import (
    BlocksMask,
    CausalMask,
    DilatedMask,
    FullMask,
    GlobalTokensMask,
    PrefixMask,
    WindowMask,
)
from regard.support.arguments import INTEGERS, alignment, readable, tensor_copy, whole_number

__all__ = [
    "EMPTY",
    "FULL",
    "PARTIAL",
    "Mask",
    "blocks",
    "causal",
    "dense",
    "dilated",
    "documents",
    "full",
    "global_tokens",
    "lengths",
    "packed",
    "padding",
    "prefix",
    "window",
]


_FARTHEST = 1 << 40  # larger than any length, and small enough to be added to positions in int64


def full() -> Mask:
    """Every query sees every key."""
    return FullMask()


def causal(align: str = "bottom-right", offset: int | Tensor | None = None) -> Mask:
    """A query sees its own position and all earlier ones. `align="top-left"` or `offset` moves query 0."""
    return CausalMask(*_anchor(align, offset))


def window(
    before: int, after: int | None = None, align: str = "bottom-right", offset: int | Tensor | None = None
) -> Mask:
    """A query sees itself, `before` keys before and `after` keys after (None: as many as before)."""
    before = _distance("before", before, 0)
    return WindowMask(before, None if after is None else _distance("after", after, 0), *_anchor(align, offset))


def lengths(key_lengths: Tensor, query_lengths: Tensor | None = None) -> Mask:
    """Batch entry b has key_lengths[b] real keys and, where given, query_lengths[b] real queries, from the left."""
    expected = "whole numbers of shape (b,)"
    keys = _whole_numbers("key_lengths", key_lengths, expected)
    if query_lengths is None:
        return LengthsMask(keys)
    return LengthsMask(keys, _whole_numbers("query_lengths", query_lengths, expected))


def padding(keep: Tensor, query_keep: Tensor | None = None) -> Mask:
    """True marks real keys in `keep` (b,k) and, where given, real queries in `query_keep` (b,q)."""
    keys = tensor_copy("keep", keep, (torch.bool,), "a bool tensor (b,k), True = real", rank=2)
    if query_keep is None:
        return PaddingMask(keys)
    return PaddingMask(
        keys, tensor_copy("query_keep", query_keep, (torch.bool,), "a bool tensor (b,q), True = real", rank=2)
    )


def documents(query_ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """A query sees the keys that carry its id; negative ids are padding. Ids (b,length) or (length,)."""
    queries = _ids("query_ids", query_ids)
    return DocumentsMask(queries) if key_ids is None else DocumentsMask(queries, _ids("key_ids", key_ids))


def packed(offsets: Tensor | Sequence[int]) -> Mask:
    """Concatenated documents, from cumulative lengths: [0, 3, 8] is one of three and one of five positions."""
    expected = "rising whole numbers of shape (documents + 1,)"
    cumulative = _whole_numbers("offsets", offsets, expected)
    if len(cumulative) < 1:
        raise BadValue(f"offsets: expected {expected}, got an empty tensor.")
    if readable(cumulative) and bool((cumulative.diff(prepend=cumulative.new_zeros(1)) < 0).any()):
        raise BadValue(
            f"offsets: expected {expected}, none below the one before it and none below 0, got {_excerpt(cumulative)}. "
            f"They are cumulative lengths: [0, 3, 8] for documents of 3 and 5 positions."
        )
    return PackedMask(cumulative)


def prefix(n: int | Tensor) -> Mask:
    """Every query sees the first n keys; n is an int or a tensor (b,). A prefix LM is `causal() | prefix(n)`."""
    if isinstance(n, Tensor):
        return PrefixMask(_whole_numbers("n", n, "an int or whole numbers (b,)"))
    return PrefixMask(_distance("n", n, 0))


def blocks(size: int) -> Mask:
    """Positions in the same block of `size` see each other."""
    return BlocksMask(_distance("size", size, 1))


def dilated(step: int) -> Mask:
    """A query sees the keys whose distance is divisible by `step`."""
    return DilatedMask(_distance("step", step, 1))


def global_tokens(index: Sequence[int] | Tensor) -> Mask:
    """The positions in `index` see everything and are seen by everything; join it to another mask with `|`."""
    if isinstance(index, Tensor):
        index = index.flatten().tolist()
    return GlobalTokensMask(tuple(sorted({_distance("index", position, 0) for position in index})))


def dense(tensor: Tensor) -> Mask:
    """A bool tensor, right-aligned to (b,h,q,k)."""
    copy = tensor_copy("tensor", tensor, (torch.bool,), "a bool tensor, True = may attend (add numbers with bias=)")
    if copy.dim() > 4:
        raise BadValue(f"tensor: expected at most four axes (b,h,q,k), got shape {tuple(copy.shape)}.")
    return dense_mask(copy)


def _anchor(align: str, offset: int | Tensor | None) -> tuple[str, int | Tensor | None]:
    align = alignment(align, offset)
    if offset is None:
        return align, None
    if isinstance(offset, Tensor):
        offsets = _whole_numbers("offset", offset, "an int or whole numbers of shape (b,)")
        return align, offsets.clamp(-_FARTHEST, _FARTHEST)
    return align, _distance("offset", offset)


def _distance(argument: str, given: object, least: int | None = None) -> int:
    """A whole number of positions, clamped to ±`_FARTHEST`."""
    return max(-_FARTHEST, min(whole_number(argument, given, least), _FARTHEST))


def _whole_numbers(argument: str, given: object, what: str) -> Tensor:
    """A private copy (n,) in int64: a narrower dtype could not represent the length it is compared with."""
    return tensor_copy(argument, given, INTEGERS, what, rank=1).to(torch.int64)


def _excerpt(numbers: Tensor) -> str:
    """The first few numbers."""
    return f"[{', '.join([str(number) for number in numbers[:9].tolist()])}{', …' if len(numbers) > 9 else ''}]"


def _ids(argument: str, ids: Tensor) -> Tensor:
    expected = "whole numbers of shape (b,length) or (length,)"
    if isinstance(ids, Tensor) and ids.dim() == 1:
        ids = ids[None]
    return tensor_copy(argument, ids, INTEGERS, expected, rank=2)
