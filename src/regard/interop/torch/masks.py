"""torch's masks as masks and biases of regard: there True means hidden, and numbers are added to the scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard import biases, masks
from regard.biases import Bias
from regard.masks import Mask
from regard.masks.from_tensors import DenseMask, PaddingMask
from regard.nn.parts.masking import joined
from regard.support.arguments import readable


@dataclass
class TranslatedMasks:
    """What torch's masks mean for `attend`."""

    mask: Mask | None
    bias: Bias | None


def translate(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    causal: bool,
    sizes: tuple[int, int],
    extra: int,
    dtype: torch.dtype,
    is_finite: bool,
) -> TranslatedMasks:
    """The masks of a call with `sizes` (b,h). The first `extra` keys are visible to every query.

    key_padding_mask (b,k); attn_mask (q,k) or (b·h,q,k), unless it is `causal`. Each is bool (True = hidden) or numbers
    to add to the scores. In a key_padding_mask −inf hides the key, so that it is never read.
    `is_finite`: no key or value is NaN, infinite or near overflow, so that a bias of −inf hides as well as a mask does.
    """
    components: list[Mask | None] = []
    added: list[Bias] = []
    if key_padding_mask is not None:
        keep = real_keys(key_padding_mask)
        if key_padding_mask.dtype != torch.bool:
            finite = key_padding_mask.masked_fill(~keep, 0)
            if finite.requires_grad or not readable(finite) or bool(finite.any()):
                added.append(_dense_bias(finite[:, None, None, :], extra, dtype))
        components.append(PaddingMask(_with_columns(keep, extra, True)))
    if causal:
        components.append(masks.causal(align="top-left") if extra == 0 else masks.causal(offset=extra))
    elif attn_mask is not None:
        by_head = attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, sizes)
        if attn_mask.dtype == torch.bool and is_finite and key_padding_mask is None:
            # torch's kernels take a bias, but no mask of pairs.
            numbers = torch.zeros_like(by_head, dtype=dtype).masked_fill_(by_head, -torch.inf)
            added.append(_dense_bias(numbers, extra, dtype))
        elif attn_mask.dtype == torch.bool:
            components.append(DenseMask(_with_columns(~by_head, extra, True)))
        else:
            added.append(_dense_bias(by_head, extra, dtype))
    bias = None if not added else added[0] if len(added) == 1 else added[0] + added[1]
    return TranslatedMasks(joined(*components), bias)


def real_keys(key_padding_mask: Tensor) -> Tensor:
    """Which keys are no padding, (b,k): in a mask of numbers, those that are not −inf."""
    if key_padding_mask.dtype == torch.bool:
        return ~key_padding_mask
    return key_padding_mask != -torch.inf


def is_causal_mask(attn_mask: Tensor) -> bool:
    """Whether attn_mask (…,q,k) hides exactly the keys after each query, as the hint `is_causal` says.

    Where the contents cannot be read without waiting for a device, the hint is believed.
    """
    if not readable(attn_mask):
        return True
    later = torch.ones(attn_mask.shape[-2:], dtype=torch.bool, device=attn_mask.device).triu(1)
    if attn_mask.dtype == torch.bool:
        return bool((attn_mask == later).all())
    return bool((attn_mask == torch.zeros_like(later, dtype=attn_mask.dtype).masked_fill_(later, -torch.inf)).all())


def _dense_bias(numbers: Tensor, extra: int, dtype: torch.dtype) -> Bias:
    return biases.dense(_with_columns(numbers, extra, 0).to(dtype))


def _with_columns(tensor: Tensor, extra: int, filler: float) -> Tensor:
    """`tensor` (…,k) with `extra` columns of `filler` in front."""
    if extra == 0:
        return tensor
    return torch.cat([tensor.new_full((*tensor.shape[:-1], extra), filler), tensor], -1)
