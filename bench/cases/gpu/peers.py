"""The peers on a GPU: torch's SDPA by backend, FlexAttention compiled, `varlen_attn`. Each as a function of q, k, v.

What a peer wants prepared (a block mask, another layout) is prepared once, outside of the timed part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.cases.gpu.work import Size, Work

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

BACKENDS = {
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
}
FLEX, VARLEN = "FlexAttention", "varlen_attn"
TUNED = "FlexAttention max-autotune"


def sdpa(backend: SDPBackend, causal: bool, **options: Any) -> Attention:
    """One backend of torch's function, or an error where it does not run."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal, **options)

    return attend


@lru_cache(maxsize=1)  # the forward pass and the one with gradients come one after the other
def flex(work: Work, size: Size, device: str, mode: str | None = None) -> Attention:
    """FlexAttention, compiled for exactly this shape in a mode of `torch.compile`; its own function makes the mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    many_shapes()
    score = work.score(size, device) if work.score is not None else None
    blocks = None
    if work.mask is not None:
        blocks = create_block_mask(work.mask(size, device), None, None, size.length, size.length, device=device)
    compiled = torch.compile(flex_attention, dynamic=False, mode=mode)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found = compiled(query, key, value, score_mod=score, block_mask=blocks)
        assert isinstance(found, Tensor)
        return found

    return attend


def many_shapes() -> None:
    """Let torch.compile specialise as often as it likes: past its limit it runs unfused, and a peer would look bad."""
    import torch._dynamo

    torch._dynamo.reset()
    for name in ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit"):
        with suppress(AttributeError):
            setattr(torch._dynamo.config, name, 10_000)


def varlen(work: Work, size: Size, device: str) -> Attention:
    """`varlen_attn` on (tokens, heads, width), as it wants its inputs; see `flattened`."""
    from torch.nn.attention.varlen import varlen_attn

    assert work.varlen is not None
    options, ends = work.varlen(size)
    bounds = torch.tensor(ends, dtype=torch.int32, device=device)
    longest = max(b - a for a, b in pairwise(ends))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found = varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)
        assert isinstance(found, Tensor)
        return found

    return attend


def flattened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """(b,h,n,d) as (b·n,h,d), laid out in memory like that."""
    return [t.detach().transpose(1, 2).flatten(0, 1).contiguous().requires_grad_(t.requires_grad) for t in tensors]


def unflattened(tensor: Tensor, size: Size) -> Tensor:
    """(b·n,h,d) as (b,h,n,d)."""
    rows: Tensor = tensor.unflatten(0, (size.batch, size.length))
    return rows.transpose(1, 2)


def of(work: Work, size: Size, device: str) -> dict[str, Attention]:
    """Every peer that can be told what the work is."""
    found: dict[str, Attention] = {}
    if work.causal is not None:
        found |= {name: sdpa(backend, work.causal) for name, backend in BACKENDS.items()}
    if work.score is not None or work.mask is not None:
        found[FLEX] = flex(work, size, device)
        if TUNED in work.against:  # its search takes half a minute, on all cores
            found[TUNED] = flex(work, size, device, "max-autotune-no-cudagraphs")
    if work.varlen is not None:
        with suppress(ImportError):
            found[VARLEN] = varlen(work, size, device)
    return found
