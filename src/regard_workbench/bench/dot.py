"""Scaled dot-product attention, full and causal, against torch's own fused kernel called directly."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import regard
from regard import masks
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import slowdown

B, H, N, D = 2, 8, 1024, 64
SHAPE = f"b{B} h{H} n{N} d{D}"


def _inputs(device: str, grad: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(B, H, N, D, generator=generator).to(device).requires_grad_(grad) for _ in ("query", "key", "value")
    ]


def _compare(setting: Setting, causal: bool, train: bool) -> Measurement:
    query, key, value = _inputs(setting.device, grad=train)
    mask = masks.causal() if causal else None
    ours_impl = regard.explain(query, key, value, mask=mask).impl

    def ours() -> torch.Tensor | tuple[torch.Tensor, ...]:
        return regard.attend(query, key, value, mask=mask)

    def peer() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    if not train:
        return slowdown(ours, peer, setting, ours_impl)
    upstream = torch.randn(B, H, N, D, generator=torch.Generator().manual_seed(1)).to(setting.device)
    return slowdown(
        lambda: torch.autograd.grad(ours(), (query, key, value), upstream),
        lambda: torch.autograd.grad(peer(), (query, key, value), upstream),
        setting,
        ours_impl,
    )


@case("dot-full-forward", work=f"dot, full, {SHAPE}, forward", peer="SDPA", unit="× time", at_most=1.05)
def full_forward(setting: Setting) -> Measurement:
    """Every query sees every key; no gradient."""
    return _compare(setting, causal=False, train=False)


@case("dot-full-train", work=f"dot, full, {SHAPE}, forward+backward", peer="SDPA", unit="× time", at_most=1.05)
def full_train(setting: Setting) -> Measurement:
    """Every query sees every key; gradients of all three inputs."""
    return _compare(setting, causal=False, train=True)


@case("dot-causal-forward", work=f"dot, causal, {SHAPE}, forward", peer="SDPA is_causal", unit="× time", at_most=1.05)
def causal_forward(setting: Setting) -> Measurement:
    """Each query sees itself and what came before; no gradient."""
    return _compare(setting, causal=True, train=False)


@case(
    "dot-causal-train",
    work=f"dot, causal, {SHAPE}, forward+backward",
    peer="SDPA is_causal",
    unit="× time",
    at_most=1.05,
)
def causal_train(setting: Setting) -> Measurement:
    """Each query sees itself and what came before; gradients of all three inputs."""
    return _compare(setting, causal=True, train=True)
