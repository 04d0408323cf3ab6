"""The first call with a new length: what compiles or plans for each shape makes a user wait there.

The kernels are warm from two other lengths; then a hundred lengths come once each, and the slowest counts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import regard
from bench.cases.gpu import check
from bench.cases.gpu.compare import PASSES
from bench.cases.gpu.dot import CAUSAL, FULL
from bench.cases.gpu.events import host_seconds
from bench.cases.gpu.structured import SPARSE, STRUCTURED
from bench.cases.gpu.work import Size, Work, gradient, inputs
from regard_workbench.bench.case import Measurement, Setting, case

COUNT, SHORTEST, LONGEST = 100, 1000, 8000
WARM = (4096, 2999)
BAR = 50.0  # milliseconds
ANY = Size(1, 16, 0, 128)  # but for its length


def unseen(count: int = COUNT, shortest: int = SHORTEST, longest: int = LONGEST) -> list[int]:
    """Lengths that all differ, and from those that warm up, in no order."""
    choice = random.Random(0)
    return choice.sample([n for n in range(shortest, longest) if n not in WARM], count)


def measured(
    setting: Setting,
    work: Work,
    train: bool,
    size: Size = ANY,
    lengths: list[int] | None = None,
    warm: tuple[int, ...] = WARM,
    dtype: torch.dtype = torch.bfloat16,
) -> Measurement:
    """The slowest first call in milliseconds; the middle one and those of the second calls are in the details."""
    first: list[float] = []
    second: list[float] = []
    impls: set[str] = set()
    for length in [*warm, *(lengths or unseen())]:
        here = Size(size.batch, size.heads, length, size.width)
        tensors = inputs(here, setting.device, dtype, grad=train)
        upstream = gradient(here, setting.device, dtype) if train else None
        options = work.options(here, setting.device)
        call = partial(_call, tensors, options, upstream)
        if length in warm:
            check.attention(tensors, options, work.for_head(here, setting.device), upstream)
            call()
            continue
        first.append(1e3 * host_seconds(call, setting.device))
        second.append(1e3 * host_seconds(call, setting.device))
        impls.add(regard.explain(*tensors, **options).impl)
    details = {
        "median_ms": statistics.median(first),
        "slowest_second_call_ms": max(second),
        "median_second_call_ms": statistics.median(second),
        "calls_over_the_bar": sum(reading > BAR for reading in first),
    }
    found = Measurement.of(first, ours=max(first) / 1e3, impl="+".join(sorted(impls)), details=details)
    return replace(found, value=max(first))


def _call(tensors: list[torch.Tensor], options: Mapping[str, Any], upstream: torch.Tensor | None) -> object:
    if upstream is None:
        with torch.no_grad():
            return regard.attend(*tensors, **options)
    output = regard.attend(*tensors, **options)
    assert isinstance(output, torch.Tensor)
    return torch.autograd.grad(output, tensors, upstream)


for _work in (FULL, CAUSAL, SPARSE[0], STRUCTURED[0], STRUCTURED[2]):
    for _ending, _words in PASSES.items():
        case(
            f"lengths-{_work.name}-{_ending}",
            work=f"{COUNT} unseen lengths, {_work.words}, b1 h16 d128, bf16, {_words}",
            peer="(FlexAttention: 5 to 9 s)",
            unit="ms, slowest first call",
            at_most=BAR,
            device="cuda",
            rank=0 if _work in (CAUSAL, SPARSE[0]) else 1,
        )(partial(measured, work=_work, train=_ending == "train"))
