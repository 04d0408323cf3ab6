"""What `auto` loses: random requests, timed under every implementation that runs them and under what `auto` takes.

The regret of a request is the time of `auto`'s choice over the best time, less 1. Requests are drawn from the shapes
people use: 128 to 32k keys, widths of 32 to 256, 1 to 128 heads in all, every dtype, plain and structured masks, with
and without gradients. The draw is fixed, so that runs can be compared.
"""

from __future__ import annotations

import gc
import math
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from benchmarks.gpu_checking.formula import DEVICE, options, rows
from benchmarks.gpu_checking.report import Report
from benchmarks.gpu_checking.timing import milliseconds

import regard

REQUESTS, ALLOWED = 200, 0.05
CANDIDATES = ("sdpa", "triton", "tiled")  # what `auto` may take; flex is never automatic
MASKS = ("full", "full", "causal", "causal", "window", "padding", "documents", "prefix", "alibi", "softcap")
DTYPES = (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)
_MOST = 1 << 40  # score entries × width of one request, so that none takes seconds


@dataclass(frozen=True)
class Drawn:
    """One random request."""

    batch: int
    heads: int
    length: int
    width: int
    dtype: torch.dtype
    mask: str
    trains: bool

    def __str__(self) -> str:
        kind = "training" if self.trains else "forward"
        return f"b{self.batch} h{self.heads} n{self.length} d{self.width} {str(self.dtype)[6:]} {self.mask} {kind}"


def drawn(count: int = REQUESTS, seed: int = 20) -> list[Drawn]:
    """The requests; lengths are spread evenly on a logarithmic scale, and most are no powers of two."""
    source, found = random.Random(seed), []
    while len(found) < count:
        lines, heads = 2 ** source.randint(0, 7), 2 ** source.randint(0, 4)
        length = round(2 ** source.uniform(7, 15))
        if source.random() < 0.4:
            length = 2 ** round(math.log2(length))
        one = Drawn(
            max(1, lines // heads), heads, length, source.choice((32, 48, 64, 80, 96, 128, 256)),
            source.choice(DTYPES), source.choice(MASKS), source.random() < 0.5,
        )  # fmt: skip
        if one.batch * one.heads * one.length**2 * one.width <= _MOST:
            found.append(one)
    return found


def regret_of(one: Drawn) -> dict[str, Any]:
    """Times of all candidates; those that refuse are left out, and slow ones are timed once."""
    q, k, v, grad = rows(one.batch, one.heads, one.length, one.width, dtype=one.dtype)
    asked = options(one.mask, one.length, one.heads)
    with torch.set_grad_enabled(one.trains):
        chosen = regard.explain(q, k, v, **asked).impl

    def call(impl: str) -> Any:
        if one.trains:
            return torch.autograd.grad(regard.attend(q, k, v, impl=impl, **asked), (q, k, v), grad)
        with torch.no_grad():
            return regard.attend(q, k, v, impl=impl, **asked)

    times: dict[str, float] = {}
    calls: dict[str, Any] = {}
    for impl in CANDIDATES:
        try:
            for _ in range(9):  # also lets cuDNN plan, which `sdpa` allows a shape that has come eight times
                begun = time.perf_counter()
                call(impl)
                torch.cuda.synchronize()
                if time.perf_counter() - begun > 0.2:
                    break
        except (regard.Unsupported, torch.cuda.OutOfMemoryError):
            continue
        took = time.perf_counter() - begun
        if took > 0.02 and impl != chosen and times and took * 1e3 > 4 * min(times.values()):
            times[impl] = took * 1e3  # far from the best: not worth more time
        else:
            times[impl] = took * 1e3
            calls[impl] = partial(call, impl)
    times |= milliseconds(calls, count=5, groups=5)
    best = min(times, key=times.__getitem__)
    regret = times[chosen] / times[best] - 1
    return {
        "auto": chosen, "best": best, "regret": round(regret, 4), "ok": regret <= ALLOWED,
        "ms": {impl: round(one, 4) for impl, one in times.items()},
    }  # fmt: skip


def regret(report: Report, count: int = REQUESTS) -> None:
    """Time all requests, and print the regret: largest, mean, and how many are above the bound."""
    found: list[tuple[float, str]] = []
    for one in drawn(count):

        def measured(one: Drawn = one) -> dict[str, Any]:
            result = regret_of(one)
            found.append((result["regret"], str(one)))
            return result

        report.try_case("regret", str(one), measured)
        gc.collect()
        torch.cuda.empty_cache()
    if found:
        worst = sorted(found, reverse=True)
        report.write(
            "regret", "all", requests=len(found), largest=worst[0][0], mean=sum(r for r, _ in found) / len(found),
            above=sum(r > ALLOWED for r, _ in found), worst=[f"{name}: {r:.1%}" for r, name in worst[:5]],
            device=torch.cuda.get_device_name(DEVICE),
        )  # fmt: skip
