"""Check the settings of a case against float64, and time the right ones beside FlexAttention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks.variants.cases import DEVICE, DTYPE, WORKS, Case
from benchmarks.variants.report import Output
from benchmarks.variants.settings import forget, tried
from benchmarks.variants.timing import measured
from torch import Tensor

import regard
from regard_workbench.bench.gpu import check, peers
from regard_workbench.bench.gpu.work import LONG_128, SHORT_128, gradient, inputs, timed_call


def ours(options: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One call of ours, by name, so that nothing else is timed by mistake."""
    found = regard.attend(query, key, value, impl="triton", **options)
    assert isinstance(found, Tensor)
    return found


def trained(call: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor | None) -> list[Tensor]:
    """The output, and the gradients if there is one of the output."""
    output = call(*tensors)
    return [output.detach(), *(() if upstream is None else torch.autograd.grad(output, tensors, upstream))]


def checked(case: Case, settings: list[Any]) -> dict[str, str]:
    """What is wrong with each setting, in two heads of the last batch entry, of 4096 positions at most."""
    work, small = WORKS[case.work], SHORT_128 if case.size is LONG_128 else case.size
    tensors = inputs(small, DEVICE, DTYPE, grad=case.train)
    upstream = gradient(small, DEVICE, DTYPE) if case.train else None
    options = work.options(small, DEVICE)
    exact = []
    for head in (0, small.heads - 1):
        own = [tensor.detach()[-1:, head : head + 1].double().requires_grad_(case.train) for tensor in tensors]
        told = None if upstream is None else upstream[-1:, head : head + 1].double()
        asked = partial(regard.attend, impl="reference", **work.for_head(small, DEVICE)(head))
        exact.append((head, trained(asked, own, told)))
    wrong: dict[str, str] = {}
    for name, context, _ in settings:
        try:
            with context:
                first, second = (trained(partial(ours, options), tensors, upstream) for _ in range(2))
            if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                wrong[name] = "other bits in a second run"
            for head, wanted in exact:
                far = max(check.distance(a[-1:, head : head + 1], b) for a, b in zip(first, wanted, strict=True))
                if not far <= check.LIMITS[DTYPE]:
                    wrong[name] = f"relative error {far:.2g} in head {head}"
        except Exception as problem:
            forget()
            wrong[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:160] if str(problem) else ''}"
    return wrong


def run_case(case: Case, output: Output) -> None:
    """Check, time and tell."""
    work, size = WORKS[case.work], case.size
    settings = tried(case)
    wrong = checked(case, settings)
    tensors = inputs(size, DEVICE, DTYPE, grad=case.train)
    upstream = gradient(size, DEVICE, DTYPE) if case.train else None
    call = timed_call(partial(ours, work.options(size, DEVICE)), tensors, upstream)
    flex = timed_call(peers.flex(work, size, DEVICE), tensors, upstream)
    calls = {name: (context, call) for name, context, _ in settings if name not in wrong}
    times = measured({**calls, "FlexAttention": (contextlib.nullcontext(), flex)})
    peer = times["FlexAttention"]
    output.write(f"{case.name}: FlexAttention {peer:.3f} ms", case=case.name, variant="FlexAttention", ms=peer)
    best = min(times[name] for name in calls) if calls else 0.0
    for name, _, entry in settings:
        if name in wrong:
            output.write(f"    {name:28s} WRONG: {wrong[name]}", case=case.name, variant=name, wrong=wrong[name])
            continue
        mark = "  <- best" if times[name] == best else ""
        said = f"    {name:28s} {times[name]:.3f} ms  {peer / times[name]:.2f} x{mark}  {entry}"
        output.write(said, case=case.name, variant=name, ms=times[name], times_flex=peer / times[name], entry=entry)
