"""`torch.nn.functional.scaled_dot_product_attention`, computed by `regard.attend`."""

import os

import torch
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, CausalVariant

import regard
from regard import masks

TORCHS = functional.scaled_dot_product_attention
CALLS = {"eager": 0}


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """torch's function, in its layouts (…,length,d) and with its masks, where True is visible."""
    if query.is_nested or _is_reference():
        return TORCHS(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if not torch.compiler.is_compiling():
        CALLS["eager"] += 1
    axes = query.dim()
    batches = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]) if axes > 4 else ()
    options = _masked(attn_mask, is_causal, axes, batches)
    if scale is not None:
        options["scale"] = float(scale)
    heads = [_by_head(rows, batches) if axes != 1 else rows for rows in (query, key, value)]
    mixed = regard.attend(*heads, dropout=dropout_p, **options)
    if axes == 4:
        return mixed
    leading = (*batches, query.shape[-3]) if axes > 4 else query.shape[:-2]
    return mixed.reshape(*leading, query.shape[-2], value.shape[-1])


def _is_reference():
    """Whether a test asks for torch's plain formula, to compare with. REFERENCE=torch: it gets torch's."""
    if os.environ.get("REFERENCE") != "torch" or torch.compiler.is_compiling():
        return False
    backends = torch.backends.cuda
    fused = (backends.flash_sdp_enabled, backends.mem_efficient_sdp_enabled, backends.cudnn_sdp_enabled)
    return backends.math_sdp_enabled() and not any(is_enabled() for is_enabled in fused)


def _by_head(rows, batches):
    """Rows (length,d), (b,length,d) or (…,h,length,d) as (b,h,length,d)."""
    if rows.dim() == 2:
        return rows[None, None]
    if rows.dim() == 3:
        return rows[:, None]
    return rows.expand(*batches, *rows.shape[-3:]).flatten(0, len(batches) - 1) if batches else rows


def _masked(attn_mask, is_causal, axes, batches):
    """torch's mask, and its causality from the top left, as arguments of `regard.attend`."""
    if isinstance(attn_mask, CausalBias):
        if is_causal:
            raise ValueError("CausalBias should not be used with causal=True")
        is_upper = attn_mask.variant == CausalVariant.UPPER_LEFT
        return {"mask": masks.causal(align="top-left" if is_upper else "bottom-right")}
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
        return {"mask": masks.causal(align="top-left")}
    if attn_mask is None:
        return {}
    if attn_mask.dim() > 2 and axes != 4:
        attn_mask = _by_head(attn_mask, batches)
    return {"mask" if attn_mask.dtype == torch.bool else "bias": attn_mask}
