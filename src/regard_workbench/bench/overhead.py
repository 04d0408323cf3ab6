"""The overhead of `impl="auto"` over the call it makes, on tensors so small that little else is left."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import regard
from regard import masks
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import overhead

B, H, N, D = 1, 2, 16, 16  # 16 keys: with fewer, the CPU's fused kernel is not safe to call
SHAPE = f"b{B} h{H} n{N} d{D}"


def _inputs(device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, N, D, generator=generator).to(device) for _ in ("query", "key", "value")]


@case("overhead-plain", work=f"attend over the call it makes, {SHAPE}", peer="SDPA", unit="µs more", at_most=10)
def plain(setting: Setting) -> Measurement:
    """No mask: validation, the cached plan, the call."""
    query, key, value = _inputs(setting.device)
    return overhead(
        lambda: regard.attend(query, key, value),
        lambda: F.scaled_dot_product_attention(query, key, value),
        setting,
        regard.explain(query, key, value).impl,
    )


@case(
    "overhead-padding",
    work=f"attend with padding over the call it makes, {SHAPE}",
    peer="SDPA, (b,1,1,k) bool mask",
    unit="µs more",
    at_most=40,
)
def padding(setting: Setting) -> Measurement:
    """Key padding: also the guards that keep hidden keys unread and empty rows zero."""
    query, key, value = _inputs(setting.device)
    keep = torch.ones(B, N, dtype=torch.bool, device=setting.device)
    keep[:, -3:] = False
    mask, dense = masks.padding(keep), keep[:, None, None, :]
    return overhead(
        lambda: regard.attend(query, key, value, mask=mask),
        lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=dense),
        setting,
        regard.explain(query, key, value, mask=mask).impl,
    )
