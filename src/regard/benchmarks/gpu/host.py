"""What the host needs to issue a training call: a model of short sequences waits for it, whatever the kernels take."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard import masks
from regard.benchmarks.case import Measurement, Setting, case
from regard.benchmarks.gpu import check
from regard.benchmarks.gpu.structured import SPARSE, STRUCTURED
from regard.benchmarks.gpu.work import Size, Work, gradient, inputs, timed_call
from regard.benchmarks.timing import TimedCall, quartiles

SIZE = Size(1, 16, 256, 64)  # the kernels take less time than the calls
CALLS, GROUPS = 100, 7
SDPA = "sdpa"
PADDING = Work("padding", "lengths", lambda size, device: {
    "mask": masks.lengths(torch.tensor([size.length - size.length // 3], device=device))
})  # fmt: skip


def issued(call: TimedCall, setting: Setting, calls: int = CALLS) -> list[float]:
    """Microseconds to issue a call, one reading for each group; the device is not waited for."""
    for _ in range(5):
        call()
    found = []
    for _ in range(3 if setting.quick else GROUPS):
        _wait(setting)
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        found.append(1e6 * (time.perf_counter() - begun) / calls)
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
    readings: dict[str, list[float]] = {}
    impls: set[str] = set()
    for work in (*SPARSE, *STRUCTURED, PADDING):
        options = work.options(size, setting.device)
        check.attention(tensors, options, work.for_head(size, setting.device), upstream)
        impls.add(regard.explain(*tensors, **options).impl)
        call: Callable[..., Tensor] = partial(regard.attend, **options)  # type: ignore[assignment]
        readings[work.name] = issued(timed_call(call, tensors, upstream), setting, calls)
    plain = issued(timed_call(F.scaled_dot_product_attention, tensors, upstream), setting, calls)
    each = {name: quartiles(found) for name, found in readings.items()}
    slowest = max(each, key=lambda name: each[name][1])
    low, middle, high = each[slowest]
    peer = quartiles(plain)[1]
    details = {"slowest": slowest, "microseconds": {name: found[1] for name, found in each.items()}}
    return Measurement(
        middle, low, high, len(plain), middle / 1e6, peer / 1e6, "+".join(sorted(impls)), SDPA, {SDPA: peer / 1e6},
        details,
    )  # fmt: skip


case("host-train", device="cuda", peer="SDPA, no mask", unit="µs of the host", at_most=260,
     work=f"issue a training call, {SIZE}, bf16, the slowest of seven masks")(partial(measured))  # fmt: skip
