"""Additive scores: how score tiles share a multiprocessor."""

from __future__ import annotations

import contextlib

import torch
from benchmarks.gpu_checking.timing import host_us
from benchmarks.variants.cases import DEVICE
from benchmarks.variants.report import Output
from benchmarks.variants.settings import Changed
from benchmarks.variants.timing import alone, back_to_back
from torch import Tensor

import regard
from regard import scores
from regard.implementations.triton.additive import strips as additive_strips
from regard.implementations.triton.additive.strips import StripCut
from regard_workbench.bench.gpu.additive import checked as exact
from regard_workbench.bench.gpu.work import timed_call

ADDITIVE = {
    "in place": None,
    "(8, 2)": StripCut(8, 2),
    "(4, 6)": StripCut(4, 6),
    "(4, 5)": StripCut(4, 5),
    "(4, 4)": StripCut(4, 4),
}


def run_additive(output: Output, shape: tuple[int, ...] = (1, 1, 4096, 128)) -> None:
    """Additive scores: back to back, the host alone, the kernels alone."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    leaves = [torch.randn(shape, generator=generator, device=DEVICE).requires_grad_() for _ in range(3)]
    leaves.append(torch.randn(shape[3], generator=generator, device=DEVICE).requires_grad_())
    upstream = torch.randn(shape, generator=generator, device=DEVICE)

    def attend(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
        return regard.attend(query, key, value, score=scores.additive(weight), impl="triton")  # type: ignore[return-value]

    for name, cut in ADDITIVE.items():
        context = contextlib.nullcontext() if cut is None else Changed(additive_strips, "OF_SCORES", cut)
        with context:
            errors = exact(leaves, upstream)
            told = []
            for train in (False, True):
                call = timed_call(attend, leaves, upstream if train else None)
                for _ in range(3):
                    call()
                ms = back_to_back(call)
                host = host_us(call, 20) if name == "in place" else 0.0
                kernels = alone(call) if name == "in place" else ""
                told.append({"train": train, "ms": ms, "host_us": host, "kernels_alone_ms": kernels})
        shown = "; ".join(
            f"{'train' if one['train'] else 'forward'} {one['ms']:.3f} ms"
            + (f" (host {one['host_us']:.0f} us, kernels alone {one['kernels_alone_ms']})" if one["host_us"] else "")
            for one in told
        )
        output.write(
            f"additive {shape}, OF_SCORES {name}: {shown}",
            case="additive",
            shape=shape,
            variant=name,
            errors=errors,
            results=told,
        )
