"""`"regard:linear"`: linear attention of a model's queries, keys and values, from the structure of its mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.interop.huggingface.mask_functions import joined
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import PaddingMask
from regard.masks.positional import CausalMask, FullMask
from regard.nn.linear import linear_attention


def mix_linear(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None, anchor: dict[str, Any], feature_map: str
) -> Tensor:
    """φ(q)ᵀ Σ φ(k) vᵀ / φ(q)ᵀ Σ φ(k), (b,h,q,v), over the keys that a causal mask and padding leave."""
    if isinstance(mask, Tensor):
        raise BadValue(
            "attention_mask: linear attention sums over keys, so it needs the structure of the mask (causal, padding), "
            "got a dense tensor. Pass a padding mask (b,k), and do not compile the model."
        )
    if "offset" in anchor:  # keys of a static cache after the last query are not filled yet
        last = anchor["offset"] + query.shape[2]
        key, value, mask = key[:, :, :last], value[:, :, :last], _cut(mask, last)
    causal, keep = _causal_and_keep(mask, query.shape[0], key.shape[2], query.device)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return linear_attention(query, key, value, keep=keep, causal=causal, feature_map=feature_map)


def _causal_and_keep(mask: Mask | None, batch: int, keys: int, device: torch.device) -> tuple[bool, Tensor | None]:
    """Whether a mask is causal, and which keys it keeps, (b,k); raises for a mask that is more than both."""
    causal, keep = False, None
    for term in _parts(mask):
        if isinstance(term, CausalMask) and term.offset is None:
            causal = True
        elif term.by_key:
            real = term.real_keys(keys, batch, device).expand(batch, keys)
            keep = real if keep is None else keep & real
        else:
            raise BadValue(
                f"attention_mask: linear attention takes causal masks and padding, got {term!r}. A model with sliding "
                f"windows, chunks or packed sequences cannot use it: take attn_implementation='regard'."
            )
    return causal, keep


def _parts(mask: Mask | None) -> list[Mask]:
    if isinstance(mask, And):
        return [*_parts(mask.left), *_parts(mask.right)]
    return [] if mask is None or isinstance(mask, FullMask) else [mask]


def _cut(mask: Mask | None, keys: int) -> Mask:
    """A mask for the first `keys` keys, where the last query stands at the last key."""
    cut_masks: list[Mask] = []
    for term in _parts(mask):
        if isinstance(term, CausalMask):
            cut_masks.append(CausalMask())
        else:
            cut_masks.append(PaddingMask(term.keep_keys[:, :keys]) if isinstance(term, PaddingMask) else term)
    return joined(cut_masks)
