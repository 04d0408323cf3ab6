"""Global tokens: how long a walk may be before it is cut."""

from __future__ import annotations

from functools import partial

from benchmarks.variants.cases import DEVICE, DTYPE, WORKS
from benchmarks.variants.report import Output
from benchmarks.variants.settings import Changed
from benchmarks.variants.timing import measured
from benchmarks.variants.trying import ours

from regard.implementations.triton.launch import pieces
from regard_workbench.bench.gpu.work import LONG_128, SHORT_128, gradient, inputs, timed_call


def run_cuts(output: Output) -> None:
    """Global tokens: when a long walk is cut."""
    for size in (SHORT_128, LONG_128):
        work = WORKS["global"]
        for train in (False, True):
            tensors = inputs(size, DEVICE, DTYPE, grad=train)
            upstream = gradient(size, DEVICE, DTYPE) if train else None
            call = timed_call(partial(ours, work.options(size, DEVICE)), tensors, upstream)
            contexts = {f"PATIENCE = {n}": (Changed(pieces, "PATIENCE", n), call) for n in (2, 1, 4, 8)}
            times = measured(contexts, 3)
            shown = ", ".join(f"{name} {ms:.3f}" for name, ms in times.items())
            output.write(
                f"global {size.label} {'train' if train else 'forward'}: {shown} ms",
                case="cuts",
                size=size.label,
                train=train,
                ms=times,
            )
