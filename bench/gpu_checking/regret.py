"""What `auto` loses: random requests, timed under every implementation that it could take and under what it takes.

The regret of a request is the time of `auto`'s choice over the best time, less 1. Requests are drawn from the shapes
people use: 128 to 32k keys, widths of 32 to 256, 1 to 128 heads in all, every dtype, plain and structured masks, with
and without gradients. The draw is fixed, so that runs can be compared. Mask, width and dtype come from a shorter list
of kinds: each kind needs kernels of its own, which take seconds to compile, and other processes compile them first.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import regard
from bench.cases.gpu.events import group
from bench.cases.gpu.structured import WINDOW
from bench.gpu_checking.formula import DEVICE, options, rows
from bench.gpu_checking.report import Report

REQUESTS, KINDS, ALLOWED = 200, 30, 0.05
CANDIDATES = ("sdpa", "triton", "tiled")  # what `auto` may take; flex and reference are never automatic
MASKS = ("full", "full", "causal", "causal", "window", "padding", "documents", "prefix", "alibi", "softcap")
WIDTHS = (32, 48, 64, 80, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)
WARM = 9  # calls; `sdpa` lets cuDNN plan for a shape that has come eight times
# Seconds of a group of calls, and groups: at first, and again where the first says that `auto` is too slow.
LOOK, AGAIN = (0.004, 5), (0.02, 9)
_LONGEST, _MOST_NUMBERS = 0.025, 2**27  # seconds of a call by our kernels, about; numbers of one tensor
_TILED_LONGEST = 0.3
_RATES = {torch.float32: 3.5e13}  # products and sums a second, about, where it is not 3.5e14


@dataclass(frozen=True)
class Kind:
    """What kernels are compiled for."""

    mask: str
    width: int
    dtype: torch.dtype

    @property
    def cost(self) -> int:
        """Larger where kernels take longer to compile."""
        return self.width * (3 if self.dtype == torch.float32 else 1)


@dataclass(frozen=True)
class Drawn:
    """One random request."""

    batch: int
    heads: int
    length: int
    kind: Kind
    trains: bool

    def __str__(self) -> str:
        what = "training" if self.trains else "forward"
        shape = f"b{self.batch} h{self.heads} n{self.length} d{self.kind.width}"
        return f"{shape} {str(self.kind.dtype)[6:]} {self.kind.mask} {what}"

    @property
    def pairs(self) -> int:
        """Entries of all score matrices, those of a window outside of it left out."""
        seen = min(self.length, WINDOW) if self.kind.mask == "window" else self.length
        return self.batch * self.heads * self.length * seen

    @property
    def seconds(self) -> float:
        """A guess of how long our kernels take."""
        work = 4 * self.pairs * self.kind.width * (4 if self.trains else 1)
        return work / _RATES.get(self.kind.dtype, 3.5e14)

    @property
    def tiled_seconds(self) -> float:
        """The same for `tiled`, which writes and reads scores about ten times."""
        return self.pairs * 4 * 10 * (3 if self.trains else 1) / 3e12


def kinds(count: int = KINDS, seed: int = 20) -> list[Kind]:
    """Different kinds; masks come in turns, so that none is missing."""
    source, found = random.Random(seed), []
    while len(found) < count:
        one = Kind(MASKS[len(found) % len(MASKS)], source.choice(WIDTHS), source.choice(DTYPES))
        if one not in found:
            found.append(one)
    return found


def drawn(count: int = REQUESTS, seed: int = 20) -> list[Drawn]:
    """The requests; lengths are spread evenly on a logarithmic scale, and most are no powers of two."""
    source, every, found = random.Random(seed), kinds(seed=seed), []
    while len(found) < count:
        lines, heads = 2 ** source.randint(0, 7), 2 ** source.randint(0, 4)
        length = round(2 ** source.uniform(7, 15))
        if source.random() < 0.4:
            length = 2 ** round(math.log2(length))
        one = Drawn(max(1, lines // heads), heads, length, source.choice(every), source.random() < 0.5)
        if one.seconds <= _LONGEST and one.batch * heads * length * one.kind.width <= _MOST_NUMBERS:
            found.append(one)
    return found


def calls_of(one: Drawn) -> tuple[regard.Plan, Callable[[str], Any]]:
    """What `auto` plans for a request, and the request under an implementation."""
    q, k, v, grad = rows(one.batch, one.heads, one.length, one.kind.width, dtype=one.kind.dtype)
    asked = options(one.kind.mask, one.length, one.heads)

    def call(impl: str) -> Any:
        if one.trains:
            return torch.autograd.grad(regard.attend(q, k, v, impl=impl, **asked), (q, k, v), grad)
        with torch.no_grad():
            return regard.attend(q, k, v, impl=impl, **asked)

    with torch.set_grad_enabled(one.trains):
        return regard.explain(q, k, v, **asked), call


def first_look(one: Drawn, chosen: str, call: Callable[[str], Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of one call under each candidate, `auto`'s first; and why others were not timed."""
    once: dict[str, float] = {}
    without: dict[str, str] = {}
    for impl in sorted(CANDIDATES, key=lambda name: name != chosen):
        if impl == "tiled" != chosen and one.tiled_seconds > _TILED_LONGEST:
            without[impl] = f"would take about {one.tiled_seconds:.1f} s"
            continue
        try:
            for count in range(WARM if impl == "sdpa" else 3):
                begun = time.perf_counter()
                call(impl)
                torch.cuda.synchronize()
                once[impl] = time.perf_counter() - begun
                if once[impl] > 8 * min(once.values()) and (count or once[impl] > 0.1):
                    break
        except (regard.Unsupported, torch.cuda.OutOfMemoryError) as trouble:
            once.pop(impl, None)
            without[impl] = str(trouble).splitlines()[0][:160]
    return once, without


def readings(
    calls: Mapping[str, Callable[[], Any]], once: Mapping[str, float], seconds: float, groups: int
) -> dict[str, float]:
    """Milliseconds of each call, the middle one of some groups that take turns."""
    counts = {name: max(1, min(20, int(seconds / once[name]))) for name in calls}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(groups):
        for name, call in calls.items():
            found[name].append(1e3 * group(call, counts[name], DEVICE))
    return {name: statistics.median(taken) for name, taken in found.items()}


def regret_of(one: Drawn) -> dict[str, Any]:
    """How much slower `auto`'s choice is than the best; what looks too slow is timed again, longer."""
    plan, call = calls_of(one)
    chosen = plan.impl
    once, without = first_look(one, chosen, call)
    near = [impl for impl in once if impl == chosen or once[impl] < 4 * once[chosen]]
    calls = {impl: partial(call, impl) for impl in near}
    times = {impl: 1e3 * took for impl, took in once.items()}
    looks = 0
    for seconds, groups in (LOOK, AGAIN) if len(calls) > 1 else ():
        times |= readings(calls, once, seconds, groups)
        looks += 1
        if times[chosen] <= (1 + ALLOWED) * min(times.values()):
            break
    best = min(times, key=times.__getitem__)
    lost = times[chosen] / times[best] - 1
    found = {
        "auto": chosen,
        "best": best,
        "regret": round(lost, 4),
        "ok": lost <= ALLOWED,
        "looks": looks,
        "ms": {impl: round(took, 4) for impl, took in times.items()},
        "not_timed": without,
    }
    return found if best == chosen else {**found, "why": f"{plan.reason}; {best}: {plan.rejected.get(best)}"}


def summary(found: Sequence[tuple[float, str]], asked: int) -> dict[str, Any]:
    """Mean, median, 95 %, largest, how many are above the bound, and the worst ten with their reasons."""
    every = sorted((lost for lost, _ in found), reverse=True)
    worst = sorted(found, reverse=True)[:10]
    return {
        "requests": len(found),
        "asked": asked,
        "mean": round(statistics.fmean(every), 4),
        "median": round(statistics.median(every), 4),
        "p95": round(every[math.ceil(0.05 * len(every)) - 1], 4),
        "largest": every[0],
        "above": sum(lost > ALLOWED for lost in every),
        "worst": [f"{lost:.1%} {words}" for lost, words in worst if lost > 0],
    }


def regret(report: Report, count: int = REQUESTS) -> dict[str, Any] | None:
    """Time all requests, one line each, and print a summary."""
    found: list[tuple[float, str]] = []
    gc.collect()
    gc.freeze()  # what is collected between requests is theirs alone
    for one in drawn(count):

        def measured(one: Drawn = one) -> dict[str, Any]:
            result = regret_of(one)
            told = f"{result['auto']} {result['ms']}: {result.get('why', 'the best')}"
            found.append((result["regret"], f"{one}: {told}"))
            return result

        report.try_case("regret", str(one), measured)
        gc.collect()
    gc.unfreeze()
    if not found:
        return None
    told = summary(found, count)
    report.write("regret", "all", device=torch.cuda.get_device_name(DEVICE), **told)
    for line in told["worst"]:
        print(f"  {line}", flush=True)
    return told


def by_kind() -> list[Callable[[], None]]:
    """One job for each kind: its requests under our kernels, so that everything is compiled; the longest jobs first."""
    every = drawn()
    return [
        partial(_compile, [one for one in every if one.kind == kind])
        for kind in sorted(kinds(), key=lambda kind: -kind.cost)
    ]


def _compile(requests: Sequence[Drawn]) -> None:
    for one in requests:
        with suppress(regard.Unsupported, torch.cuda.OutOfMemoryError):  # whoever times it tells
            calls_of(one)[1]("triton")
        torch.cuda.empty_cache()
