"""What the host needs to issue a training call: a model of short sequences waits for it, whatever the kernels take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from bench.cases.gpu import check
from bench.cases.gpu.structured import SPARSE, STRUCTURED
from bench.cases.gpu.work import Size, Work, gradient, inputs, timed_call
from regard import masks
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import TimedCall, without_garbage_collection

SIZE = Size(1, 16, 256, 64)  # the kernels take less time than the calls
CALLS, GROUPS, WARM = 100, 9, 50
SDPA, NOTHING = "sdpa", "an autograd function that computes nothing"
PADDING = Work(
    "padding",
    "lengths",
    lambda size, device: {"mask": masks.lengths(torch.tensor([size.length - size.length // 3], device=device))},
    mask=lambda size, device: lambda b, h, q, k: (q >= 0) & (k < size.length - size.length // 3),
)
WORKS = (*SPARSE, *STRUCTURED, PADDING)


class Nothing(torch.autograd.Function):
    """The least that a training call of an autograd function in Python costs."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(part) for part in ctx.saved_tensors)


def issued(sides: Mapping[str, TimedCall], setting: Setting, calls: int = CALLS) -> dict[str, list[float]]:
    """Microseconds to issue each call, one reading for each group; the device is not waited for.

    The groups alternate: something else that keeps the host busy for a while must not count for one of them alone.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    with without_garbage_collection():
        for call in sides.values():
            for _ in range(min(WARM, calls)):  # kernels are loaded, launches and tensor maps are kept
                call()
        for _ in range(3 if setting.quick else GROUPS):
            for name, call in sides.items():
                _wait(setting)
                begun = time.perf_counter()
                for _ in range(calls):
                    call()
                found[name].append(1e6 * (time.perf_counter() - begun) / calls)
    _wait(setting)
    return found


def _wait(setting: Setting) -> None:
    if setting.device == "cuda":
        torch.cuda.synchronize()


def measured(
    setting: Setting, size: Size = SIZE, dtype: torch.dtype = torch.bfloat16, calls: int = CALLS
) -> Measurement:
    """The mask whose training call takes the host longest; every other one and SDPA's are in the details."""
    tensors = inputs(size, setting.device, dtype, grad=True)
    upstream = gradient(size, setting.device, dtype)
    sides: dict[str, TimedCall] = {}
    impls: set[str] = set()
    for work in WORKS:
        options = work.options(size, setting.device)
        check.attention(tensors, options, work.for_head(size, setting.device), upstream)
        impls.add(regard.explain(*tensors, **options).impl)
        sides[work.name] = timed_call(partial(check.attend, **options), tensors, upstream)
    ours = list(sides)
    for name, peer_call in ((SDPA, F.scaled_dot_product_attention), (NOTHING, Nothing.apply)):
        sides[name] = timed_call(peer_call, tensors, upstream)
    readings = issued(sides, setting, calls)
    middle = {name: statistics.median(each) for name, each in readings.items()}
    slowest = max(ours, key=middle.__getitem__)
    peers = {name: middle[name] / 1e6 for name in (SDPA, NOTHING)}
    details = {"slowest": slowest, "microseconds": {name: middle[name] for name in ours}, "readings": readings}
    return Measurement.of(
        readings[slowest],
        ours=middle[slowest] / 1e6,
        peer=peers[SDPA],
        impl="+".join(sorted(impls)),
        best=SDPA,
        peers=peers,
        details=details,
    )


def compiled(setting: Setting, work: Work) -> None:
    """Have the kernels of one mask compiled."""
    tensors = inputs(SIZE, setting.device, torch.bfloat16, grad=True)
    upstream = gradient(SIZE, setting.device, torch.bfloat16)
    options = work.options(SIZE, setting.device)
    timed_call(partial(check.attend, **options), tensors, upstream)()


case(
    "host-train",
    device="cuda",
    peer="SDPA, no mask",
    unit="µs of the host",
    at_most=260,
    ahead=tuple(partial(compiled, work=one) for one in WORKS),
    work=f"issue a training call, {SIZE}, bf16, the slowest of seven masks",
)(partial(measured))
