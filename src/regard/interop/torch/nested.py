"""Nested tensors: sequences of different lengths, computed as a padded batch whose padding is hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.interop.torch.checks import TorchMisuse
from regard.interop.torch.projections import each_once

if TYPE_CHECKING:
    from regard.interop.torch.multihead_attention import MultiheadAttention


def forward_nested(
    layer: MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average_attn_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """The output as a nested tensor like the query; weights as a padded batch (b,q,k) or (b,h,q,k), 0 in padding."""
    query_keep = _real_rows(query)
    key_keep = query_keep if key is query else _real_rows(key)
    padded = each_once(lambda rows: torch.nested.to_padded_tensor(rows, 0.0), query, key, value)
    output, weights = layer(
        *padded, key_padding_mask=~key_keep, need_weights=need_weights, average_attn_weights=average_attn_weights
    )
    if weights is not None:
        hidden = ~(query_keep if average_attn_weights else query_keep[:, None])
        weights = weights.masked_fill(hidden[..., None], 0)
    return _like(query, output, query_keep), weights


def check_nested(
    layer: MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> None:
    """Raise for nested tensors that torch's layer does not take either, in the words of torch."""
    if not (query.is_nested and key.is_nested and value.is_nested):
        raise TorchMisuse(
            "MultiheadAttention does not support NestedTensor beside other tensors: expected query, key and value to "
            "be nested all three."
        )
    why = None
    if key_padding_mask is not None or attn_mask is not None:
        why = "a nested tensor knows its own padding, and takes neither key_padding_mask nor attn_mask"
    elif not layer.batch_first:
        why = "batch_first was not True"
    elif query.layout == torch.strided and torch.is_grad_enabled():
        tensors = (query, key, value, *layer.parameters())
        if any(tensor.requires_grad for tensor in tensors):
            why = (
                "grad is enabled and at least one of query or the input/output projection weights or biases "
                "requires_grad. A nested tensor of layout=torch.jagged receives gradient"
            )
    if why is not None:
        raise TorchMisuse(
            f"MultiheadAttention does not support NestedTensor outside of its fast path. The fast path was not hit "
            f"because {why}."
        )


def _real_rows(rows: Tensor) -> Tensor:
    """Which rows of the padded batch are real, (b,length)."""
    lengths = torch.tensor([len(sequence) for sequence in rows.unbind()], device=rows.device)
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=rows.device) < lengths[:, None]


def _like(nested: Tensor, padded: Tensor, keep: Tensor) -> Tensor:
    """The real rows of a padded batch as a nested tensor of the layout, and if possible the structure, of another."""
    if nested.layout != torch.jagged:
        lengths = keep.sum(1).tolist()
        return torch.nested.as_nested_tensor([rows[:length] for rows, length in zip(padded, lengths, strict=True)])
    structure: Any = nested  # torch's class of such tensors has these methods
    if structure.lengths() is None:
        offsets = structure.offsets()  # the same object: torch then knows that the lengths are the same
    else:
        offsets = torch.nn.functional.pad(keep.sum(1).cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(padded[keep], offsets)
