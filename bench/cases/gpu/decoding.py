"""One token of decoding over a long cache: all keys and values are read once, so memory's bandwidth is the limit."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from bench.cases.gpu import check
from bench.cases.gpu.events import compared, side_by_side
from bench.cases.gpu.peers import BACKENDS
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import TimedCall

BATCH, CACHE, HEADS, SHARED, WIDTH = 8, 32768, 32, 8, 128
COPIED = 2**31  # bytes
COPY = "copy"
SHORT_CACHE = 4096
BY_NAME, CHOSEN = "ours, impl=triton", "sdpa, by itself"


def _call(backend: SDPBackend, query: Tensor, key: Tensor, value: Tensor) -> TimedCall:
    def attend() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    return attend


def _rows(setting: Setting, batch: int, cache: int, dtype: torch.dtype) -> list[Tensor]:
    """One query of each head, keys and values."""
    generator = torch.Generator(setting.device).manual_seed(0)
    shapes = [(batch, HEADS, 1, WIDTH), (batch, SHARED, cache, WIDTH), (batch, SHARED, cache, WIDTH)]
    return [
        torch.randn(shape, generator=generator, device=setting.device, dtype=torch.float32).to(dtype)
        for shape in shapes
    ]


@torch.no_grad()
def measured(
    setting: Setting, batch: int = BATCH, cache: int = CACHE, copied: int = COPIED, dtype: torch.dtype = torch.bfloat16
) -> Measurement:
    """Bytes of the cache a second, in per cent of the bytes a second that a copy reads and writes."""
    query, key, value = _rows(setting, batch, cache, dtype)
    errors = check.attention([query, key, value], {}, lambda head: {})
    source = torch.ones(copied, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    sides: dict[str, TimedCall] = {"ours": lambda: regard.attend(query, key, value), COPY: lambda: target.copy_(source)}
    sides |= {name: _call(backend, query, key, value) for name, backend in BACKENDS.items()}
    times = side_by_side(sides, setting)
    read = 2 * key.numel() * key.element_size()
    shares = [
        100 * (read / ours) / (2 * copied / copy)
        for ours, copy in zip(times.seconds["ours"], times.seconds[COPY], strict=True)
    ]
    best = times.fastest(list(BACKENDS))
    details = {
        "errors": errors,
        "copy_tb_per_second": 2 * copied / times.median(COPY) / 1e12,
        "ours_tb_per_second": read / times.median("ours") / 1e12,
    }
    peers = {name: found for name, found in times.each().items() if name not in ("ours", COPY)}
    impl = regard.explain(query, key, value).impl
    peer = times.median(best) if best else None
    ours = times.median("ours")
    return Measurement.of(shares, ours=ours, peer=peer, impl=impl, best=best, peers=peers, details=details)


@torch.no_grad()
def beside_sdpa(setting: Setting, cache: int = SHORT_CACHE, dtype: torch.dtype = torch.bfloat16) -> Measurement:
    """Our time over the best of SDPA's kernels, for one sequence: little to read, so the host counts."""
    query, key, value = _rows(setting, 1, cache, dtype)
    errors = check.attention([query, key, value], {}, lambda head: {})
    sides: dict[str, TimedCall] = {"ours": lambda: regard.attend(query, key, value)}
    if setting.device == "cuda":
        sides[BY_NAME] = lambda: regard.attend(query, key, value, impl="triton")
    sides[CHOSEN] = lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    sides |= {name: _call(backend, query, key, value) for name, backend in BACKENDS.items()}
    times = side_by_side(sides, setting)
    impl = regard.explain(query, key, value).impl
    against = [CHOSEN, *BACKENDS]
    return compared(times, against, faster=False, impl=impl, details={"errors": errors})


case(
    "decode-32k",
    device="cuda",
    peer="copy bandwidth",
    unit="% of the copy bandwidth",
    at_least=95,
    work=f"one token, b{BATCH}, cache {CACHE}, {HEADS} heads over {SHARED}, d{WIDTH}, bf16",
)(partial(measured))
case(
    "decode-4k-single",
    device="cuda",
    peer="SDPA",
    unit="× time",
    at_most=1.0,
    work=f"one token, b1, cache {SHORT_CACHE}, {HEADS} heads over {SHARED}, d{WIDTH}, bf16",
)(partial(beside_sdpa))
