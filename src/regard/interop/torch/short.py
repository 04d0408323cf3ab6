"""torch's fast path, for sequences so short that `attend` would take longer to start than to compute.

torch's operator projects, attends and projects back in one call of C++. It returns NaN for a query whose keys are all
hidden, and multiplies what is hidden by zero. So here such queries are shown every key, non-finite rows are zeros, and
both are put right afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import _has_any_global_hook

from regard.implementations.sdpa import SHORTEST_ROW
from regard.support.arguments import is_fake_or_meta
from regard.support.differentiate import needs_plain_torch

if TYPE_CHECKING:
    from regard.interop.torch.multihead_attention import MultiheadAttention

_BOTH_MASKS = 2  # torch's number of a mask (b,h,q,k)


def runs_short(
    layer: MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    need_weights: bool,
) -> bool:
    """Whether torch's operator is faster and its result can be put right: short self-attention in evaluation."""
    if (
        query is not key
        or key is not value
        or layer.training
        or not layer.batch_first
        or query.dim() != 3
        or not _is_eager(query)
        or not 0 < query.shape[1] < SHORTEST_ROW
        or (need_weights and query.shape[0] == 0)  # torch returns no weights for an empty batch
        or layer.num_heads % 2
        or layer.impl != "auto"
        or layer.in_proj_weight is None
        or layer.in_proj_bias is None
        or layer.bias_k is not None
        or layer.add_zero_attn
        or not torch.backends.mha.get_fastpath_enabled()
    ):
        return False
    if any(mask is not None and mask.dtype != torch.bool for mask in (key_padding_mask, attn_mask)):
        return False
    if attn_mask is not None and attn_mask.dim() == 3:  # a single empty head cannot be put right afterwards
        return False
    projection = layer.out_proj
    if not _is_plain(projection):
        return False
    tensors = (query, layer.in_proj_weight, layer.in_proj_bias, projection.weight, projection.bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return (
        all(tensor.dtype == query.dtype for tensor in tensors)
        and query.device.type in ("cpu", "cuda")
        and not torch.is_autocast_enabled(query.device.type)
        and not torch.overrides.has_torch_function(tensors)
        and not needs_plain_torch()
    )


def _is_eager(query: Tensor) -> bool:
    """Whether this call computes numbers. In a graph, which is for other lengths too, a test of one becomes a guard."""
    return not (torch.compiler.is_compiling() or torch._C._is_tracing() or is_fake_or_meta(query))


def _is_plain(projection: nn.Module) -> bool:
    """Whether a projection is its weight and bias alone, without a hook or a method that expects a call."""
    return (
        type(projection) is NonDynamicallyQuantizableLinear
        and projection.bias is not None
        and "forward" not in vars(projection)
        and not projection._forward_hooks
        and not projection._forward_pre_hooks
        and not _has_any_global_hook()
    )


def run_short(
    layer: MultiheadAttention,
    rows: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    need_weights: bool,
    average_attn_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output (b,length,embed_dim) and, if wanted, the weights of self-attention of `rows` (b,length,embed_dim)."""
    if key_padding_mask is None and attn_mask is None:
        return _native(layer, rows, None, need_weights, average_attn_weights)
    batch, length, _ = rows.shape
    hidden = torch.zeros(batch, length, length, dtype=torch.bool, device=rows.device)
    if attn_mask is not None:
        hidden = hidden | attn_mask
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None]
    empty = hidden.all(-1, keepdim=True)
    nonfinite = ~rows.isfinite().all(-1)
    shown = (hidden & ~empty)[:, None].expand(-1, layer.num_heads, -1, -1)
    clean = rows.masked_fill(nonfinite[..., None], 0)
    output, weights = _native(layer, clean, shown, need_weights, average_attn_weights)
    if output.numel() == 0:  # an empty batch
        return output, weights
    # In self-attention a padded key is also a padded query, whose contents are not read.
    unreadable = nonfinite if key_padding_mask is None else nonfinite & ~key_padding_mask
    undefined = unreadable[..., None] | (~hidden & nonfinite[:, None]).any(-1, keepdim=True)
    output = output.masked_fill(undefined, torch.nan)
    output = torch.where(empty, layer.out_proj.bias, output)
    if weights is None:
        return output, None
    if not average_attn_weights:
        hidden, undefined = hidden[:, None], undefined[:, None]
    return output, weights.masked_fill(undefined, torch.nan).masked_fill(hidden, 0)


def _native(
    layer: MultiheadAttention, rows: Tensor, hidden: Tensor | None, need_weights: bool, average: bool
) -> tuple[Tensor, Tensor | None]:
    output_and_weights: tuple[Tensor, Tensor | None] = torch._native_multi_head_attention(
        rows,
        rows,
        rows,
        layer.embed_dim,
        layer.num_heads,
        layer.in_proj_weight,
        layer.in_proj_bias,
        layer.out_proj.weight,
        layer.out_proj.bias,
        hidden,
        need_weights,
        average,
        None if hidden is None else _BOTH_MASKS,
    )
    return output_and_weights
