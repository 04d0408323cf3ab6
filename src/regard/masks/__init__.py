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

from regard.arguments import INTEGERS, alignment, tensor_copy, whole_number
from regard.errors import BadValue
from regard.masks.algebra import EMPTY, FULL, PARTIAL, Mask
from regard.masks.given import Dense, Documents, Lengths, Packed, Padding
from regard.masks.positional import Causal, Dilated, EqualBlocks, Full, GlobalTokens, Prefix, Window

__all__ = [
    "EMPTY", "FULL", "PARTIAL", "Mask", "blocks", "causal", "dense", "dilated", "documents", "full",
    "global_tokens", "lengths", "packed", "padding", "prefix", "window",
]  # fmt: skip


def full() -> Mask:
    """Every query sees every key."""
    return Full()


def causal(align: str = "bottom-right", offset: int | Tensor | None = None) -> Mask:
    """A query sees itself and what came before. `align="top-left"` or `offset` moves query 0."""
    return Causal(*_anchor(align, offset))


def window(
    before: int, after: int | None = None, align: str = "bottom-right", offset: int | Tensor | None = None
) -> Mask:
    """A query sees itself, `before` keys before and `after` keys after (None: as many as before)."""
    before = whole_number("before", before, 0)
    return Window(before, None if after is None else whole_number("after", after, 0), *_anchor(align, offset))


def lengths(key_lengths: Tensor, query_lengths: Tensor | None = None) -> Mask:
    """Batch entry b has key_lengths[b] real keys and, where given, query_lengths[b] real queries, from the left."""
    what = "whole numbers of shape (b,)"
    keys = tensor_copy("key_lengths", key_lengths, INTEGERS, what, rank=1)
    if query_lengths is None:
        return Lengths(keys)
    return Lengths(keys, tensor_copy("query_lengths", query_lengths, INTEGERS, what, rank=1))


def padding(keep: Tensor, query_keep: Tensor | None = None) -> Mask:
    """True marks real keys in `keep` (b,k) and, where given, real queries in `query_keep` (b,q)."""
    keys = tensor_copy("keep", keep, (torch.bool,), "a bool tensor (b,k), True = real", rank=2)
    if query_keep is None:
        return Padding(keys)
    return Padding(
        keys, tensor_copy("query_keep", query_keep, (torch.bool,), "a bool tensor (b,q), True = real", rank=2)
    )


def documents(query_ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """A query sees the keys that carry its id; negative ids are padding. Ids (b,length) or (length,)."""
    queries = _ids("query_ids", query_ids)
    return Documents(queries) if key_ids is None else Documents(queries, _ids("key_ids", key_ids))


def packed(offsets: Tensor | Sequence[int]) -> Mask:
    """Documents laid end to end, from cumulative lengths: [0, 3, 8] is one of three and one of five positions."""
    what = "rising whole numbers of shape (documents + 1,)"
    found = tensor_copy("offsets", offsets, INTEGERS, what, rank=1)
    if len(found) < 1:
        raise BadValue(f"offsets: expected {what}, got an empty tensor.")
    return Packed(found.to(torch.int64))


def prefix(n: int | Tensor) -> Mask:
    """Every query sees the first n keys; n is an int or a tensor (b,). A prefix LM is `causal() | prefix(n)`."""
    if isinstance(n, Tensor):
        return Prefix(tensor_copy("n", n, INTEGERS, "an int or whole numbers (b,)", rank=1))
    return Prefix(whole_number("n", n, 0))


def blocks(size: int) -> Mask:
    """Positions in the same block of `size` see each other."""
    return EqualBlocks(whole_number("size", size, 1))


def dilated(step: int) -> Mask:
    """A query sees the keys whose distance is divisible by `step`."""
    return Dilated(whole_number("step", step, 1))


def global_tokens(index: Sequence[int] | Tensor) -> Mask:
    """The positions in `index` see everything and are seen by everything; join it to another mask with `|`."""
    if isinstance(index, Tensor):
        index = index.flatten().tolist()
    return GlobalTokens(tuple(sorted({whole_number("index", position, 0) for position in index})))


def dense(tensor: Tensor) -> Mask:
    """A bool tensor, right-aligned to (b,h,q,k)."""
    copy = tensor_copy(
        "tensor", tensor, (torch.bool,), "a bool tensor, True = may attend (add numbers with bias=)"
    )
    if copy.dim() > 4:
        raise BadValue(f"tensor: expected at most four axes (b,h,q,k), got shape {tuple(copy.shape)}.")
    return Dense(copy[(None,) * (4 - copy.dim())])


def _anchor(align: str, offset: int | Tensor | None) -> tuple[str, int | Tensor | None]:
    align = alignment(align, offset)
    if offset is None:
        return align, None
    if isinstance(offset, Tensor):
        what = "an int or whole numbers of shape (b,)"
        return align, tensor_copy("offset", offset, INTEGERS, what, rank=1)
    return align, whole_number("offset", offset)


def _ids(argument: str, ids: Tensor) -> Tensor:
    what = "whole numbers of shape (b,length) or (length,)"
    if isinstance(ids, Tensor) and ids.dim() == 1:
        ids = ids[None]
    return tensor_copy(argument, ids, INTEGERS, what, rank=2)
