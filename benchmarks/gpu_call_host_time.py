"""Print what the host takes for calls of `attend` on a GPU, measured without one: launches are replaced by nothing.

    python -m benchmarks.gpu_call_host_time

Microseconds of thread time, the lower quartile of many blocks, on this machine's CPU. What a GPU adds is not in it: the
driver, Triton's C function, CUDA's allocator, and for a backward pass the change to autograd's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from benchmarks.call_host_time import microseconds
from benchmarks.unlaunched import unlaunched

import regard
from regard.benchmarks.gpu.decoding import HEADS, SHARED, SHORT_CACHE, WIDTH
from regard.benchmarks.gpu.host import NOTHING, SIZE, WORKS, Nothing
from regard.benchmarks.gpu.work import gradient, inputs, timed_call

TINY = (1, 1, 2, 8)  # of a CPU, so that torch's own function computes next to nothing


def training() -> dict[str, Callable[[], object]]:
    """A training call with each mask."""
    rows, upstream = inputs(SIZE, "cpu", torch.bfloat16, grad=True), gradient(SIZE, "cpu", torch.bfloat16)
    return {
        work.name: timed_call(partial(regard.attend, **work.options(SIZE, "cpu")), rows, upstream)
        for work in WORKS
    }


def forward() -> dict[str, Callable[[], object]]:
    """A call without gradient with each mask."""
    rows = inputs(SIZE, "cpu", torch.bfloat16)
    return {work.name: partial(regard.attend, *rows, **work.options(SIZE, "cpu")) for work in WORKS}


def decoding() -> dict[str, Callable[[], object]]:
    """One token over a cache."""
    shapes = ((HEADS, 1), (SHARED, SHORT_CACHE), (SHARED, SHORT_CACHE))
    rows = [torch.randn(1, heads, length, WIDTH, dtype=torch.bfloat16) for heads, length in shapes]
    lengths = regard.masks.lengths(torch.tensor([SHORT_CACHE - 7]))
    return {
        "plain": partial(regard.attend, *rows),
        "causal": partial(regard.attend, *rows, mask=regard.masks.causal()),
        "lengths": partial(regard.attend, *rows, mask=lengths),
    }


def peers() -> dict[str, Callable[[], object]]:
    """For comparison: what autograd and torch's function take by themselves."""
    rows, upstream = inputs(SIZE, "cpu", torch.bfloat16, grad=True), gradient(SIZE, "cpu", torch.bfloat16)
    tiny = [torch.randn(TINY, requires_grad=True) for _ in range(3)]
    sdpa = F.scaled_dot_product_attention
    return {
        NOTHING: timed_call(Nothing.apply, rows, upstream),
        "sdpa on tiny rows of a CPU, forward+backward": timed_call(sdpa, tiny, torch.randn(TINY)),
        "sdpa on tiny rows of a CPU, forward": timed_call(sdpa, tiny, None),
    }


def main() -> None:
    """Print one line for each call."""
    torch.set_num_threads(1)
    for name, call in peers().items():
        print(f"{name:50s} {microseconds(call):7.2f} µs")
    with unlaunched():
        for title, calls in (
            ("forward+backward", training()),
            ("forward", forward()),
            ("one token", decoding()),
        ):
            for name, call in calls.items():
                with torch.set_grad_enabled(title == "forward+backward"):
                    print(f"{title + ', ' + name:50s} {microseconds(call):7.2f} µs")


if __name__ == "__main__":
    main()
