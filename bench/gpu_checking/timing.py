"""Times on a GPU: what the host needs to issue a call, and calls beside FlexAttention."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench.cases.gpu.capture import captured
from bench.cases.gpu.events import group
from bench.cases.gpu.host import Nothing
from bench.gpu_checking.formula import (
    DEVICE,
    GLOBALS,
    NAMES,
    WINDOW,
    document_ids,
    error,
    options,
    rows,
    slopes,
    trained,
)
from bench.gpu_checking.report import Report
from regard import biases, masks

SIZES = {"4k": (4, 16, 4096), "16k": (1, 16, 16384)}
_FLEX: dict[Any, Callable[..., Tensor]] = {}


def host_us(call: Callable[[], Any], count: int = 100) -> float:
    """Microseconds to issue one call; the device is not waited for."""
    for _ in range(5):
        call()
    found = []
    for _ in range(7):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begun) / count * 1e6)
    torch.cuda.synchronize()
    return statistics.median(found)


def host(report: Report) -> None:
    """Issue small calls."""
    q, k, v, grad = rows(1, 16, 256, 64)

    def training(call: Callable[..., Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(call(q, k, v), (q, k, v), grad)

    def forward(call: Callable[..., Tensor]) -> Callable[[], Any]:
        def run() -> None:
            with torch.no_grad():
                call(q, k, v)

        return run

    sdpa = torch.nn.functional.scaled_dot_product_attention
    report.try_case("host", "an empty autograd function", lambda: {"training_us": host_us(training(Nothing.apply))})
    report.try_case("host", "sdpa", partial(both_us, training(sdpa), forward(sdpa)))
    table = torch.zeros(16, 63, device=DEVICE, requires_grad=True)
    every = {name: options(name, 256, 16) for name in (*NAMES, "softcap", "padding")}
    every["relative bias"] = {"mask": masks.causal(), "bias": biases.relative(table)}
    for name, asked in every.items():
        call = partial(regard.attend, impl="triton", **asked)
        report.try_case("host", name, partial(both_us, training(call), forward(call)))


def both_us(training: Callable[[], Any], forward: Callable[[], Any]) -> dict[str, Any]:
    """Microseconds of a training call and of a call without gradients."""
    return {"training_us": round(host_us(training), 1), "forward_us": round(host_us(forward), 1)}


def flex(name: str, n: int, heads: int) -> Callable[..., Tensor]:
    """FlexAttention for a case, compiled for its sizes."""
    if (name, n) not in _FLEX:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.config.recompile_limit = 1000
        steep, ids = slopes(heads), document_ids(n)
        shown = {
            "window": lambda b, h, q, k: (q >= k) & (q - k < WINDOW),
            "global": lambda b, h, q, k: ((q >= k) & (q - k < WINDOW)) | (q < GLOBALS) | (k < GLOBALS),
            "prefix": lambda b, h, q, k: (q >= k) | (k < n // 4),
            "documents": lambda b, h, q, k: (q >= k) & (ids[q] == ids[k]),
        }.get(name, lambda b, h, q, k: q >= k)
        score = (lambda s, b, h, q, k: s - steep[h] * (q - k)) if name == "alibi" else None
        blocks, call = (
            create_block_mask(shown, None, None, n, n, device=DEVICE),
            torch.compile(flex_attention, dynamic=False),
        )
        _FLEX[name, n] = lambda q, k, v: call(q, k, v, score_mod=score, block_mask=blocks)
    return _FLEX[name, n]


def milliseconds(calls: dict[str, Callable[[], Any]], count: int = 10, groups: int = 5) -> dict[str, float]:
    """Median time of each call, in groups of calls back to back that take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    gc.collect()
    for _ in range(groups):
        for name, call in calls.items():
            found[name].append(1e3 * group(call, count, DEVICE))
    return {name: statistics.median(times) for name, times in found.items()}


def peer_cases() -> list[tuple[str, str, int]]:
    """Mask, size and width of every comparison."""
    return [(name, size, d) for name in NAMES for size in SIZES for d in (128, 64)]


def compare(name: str, size: str, d: int) -> dict[str, Any]:
    """Time one case, forward and training, ours and FlexAttention's in turns."""
    b, h, n = SIZES[size]
    q, k, v, grad = given = rows(b, h, n, d)
    asked, theirs = options(name, n, h), flex(name, n, h)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend(q, k, v, impl="triton", **asked)

    found: dict[str, Any] = {"error": error(name, trained(*given, **asked), given, h - 1) if n == 4096 else None}
    for kind in ("forward", "training"):
        calls: dict[str, Callable[[], Any]] = {}
        for label, call in (("ours", ours), ("flex", theirs)):

            def forward(call: Callable[..., Tensor] = call) -> Tensor:
                with torch.no_grad():
                    return call(q, k, v)

            def training(call: Callable[..., Tensor] = call) -> Any:
                return torch.autograd.grad(call(q, k, v), (q, k, v), grad)

            calls[label] = forward if kind == "forward" else training
        times = milliseconds(calls)
        times["ours_graph"] = milliseconds({"x": captured(calls["ours"]).replay})["x"]
        found[kind] = {
            **{label: round(one, 4) for label, one in times.items()},
            "ratio": round(times["flex"] / times["ours"], 3),
        }
    return found


def peers(report: Report) -> None:
    """Time beside FlexAttention."""
    for name, size, d in peer_cases():
        report.try_case("peers", f"{name} {size} d{d}", partial(compare, name, size, d))
        gc.collect()
        torch.cuda.empty_cache()


def regarded_and_flex(name: str, size: str, d: int) -> None:
    """Run a comparison's calls once, so that they are compiled."""
    b, h, n = SIZES[size]
    q, k, v, grad = rows(b, h, n, d)
    for call in (flex(name, n, h), lambda q, k, v: regard.attend(q, k, v, impl="triton", **options(name, n, h))):
        torch.autograd.grad(call(q, k, v), (q, k, v), grad)
        with torch.no_grad():
            call(q, k, v)
