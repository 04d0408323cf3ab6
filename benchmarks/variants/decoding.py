"""One token of decoding, by every operator there is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.gpu_checking.timing import host_us
from benchmarks.variants.cases import DEVICE, DTYPE
from benchmarks.variants.report import Output
from benchmarks.variants.timing import alone, measured

import regard
from regard_workbench.bench.gpu import check


@torch.no_grad()
def run_decoding(output: Output) -> None:
    """One token over a cache of 4096, b1: what the host and the kernels take."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device=DEVICE).to(DTYPE)
        for shape in ((1, 32, 1, 128), (1, 8, 4096, 128), (1, 8, 4096, 128))
    )
    exact = regard.attend(query.double(), key.double(), value.double(), impl="reference")
    calls: dict[str, Callable[[], Any]] = {
        "sdpa by itself": lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
        "attend": lambda: regard.attend(query, key, value),
        "attend, impl=triton": lambda: regard.attend(query, key, value, impl="triton"),
        "torch's flash operator": lambda: torch._scaled_dot_product_flash_attention(query, key, value)[0],
        "torch's cuDNN operator": lambda: torch._scaled_dot_product_cudnn_attention(query, key, value, None, False)[0],
    }
    choice = torch._fused_sdp_choice(query, key, value, enable_gqa=True)
    output.write(f"decode b1 4k: torch chooses {choice} (1 flash, 2 efficient, 3 cuDNN)", case="decode", choice=choice)
    good = {}
    for name, call in calls.items():
        try:
            for _ in range(12):  # more than `sdpa` waits before cuDNN may plan
                call()
            far = check.distance(call(), exact)
            assert far <= check.LIMITS[DTYPE], f"relative error {far:.2g}"
            good[name] = call
        except Exception as problem:
            output.write(f"    {name}: {type(problem).__name__}: {str(problem)[:160]}", case="decode", variant=name)
    times = measured({name: (contextlib.nullcontext(), call) for name, call in good.items()}, 9)
    for name, call in good.items():
        host, kernels = host_us(call), alone(call)
        output.write(
            f"    {name:24s} {1e3 * times[name]:.1f} us back to back, host {host:.1f} us, kernels alone {kernels} ms",
            case="decode",
            variant=name,
            us=1e3 * times[name],
            host_us=host,
            kernels_alone_ms=kernels,
        )
