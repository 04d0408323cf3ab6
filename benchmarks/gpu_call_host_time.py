"""Print what the host takes for calls of `attend` on a GPU, measured without one: launches are replaced by nothing.

    python -m benchmarks.gpu_call_host_time

Microseconds of thread time, the lower quartile of many blocks, on this machine's CPU. What a GPU adds is not in it: the
driver, Triton's C function, CUDA's allocator, and for a backward pass the change to autograd's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.call_host_time import microseconds
from benchmarks.unlaunched import unlaunched

import regard
from regard.dispatch import repeated_calls
from regard_workbench.bench.gpu.decoding import HEADS, SHARED, SHORT_CACHE, WIDTH
from regard_workbench.bench.gpu.host import NOTHING, SIZE, WORKS, Nothing
from regard_workbench.bench.gpu.work import gradient, inputs, timed_call

TINY = (1, 1, 2, 8)  # of a CPU, so that torch's own function computes next to nothing


def training() -> dict[str, Callable[[], object]]:
    """A training call with each mask."""
    rows, upstream = inputs(SIZE, "cpu", torch.bfloat16, grad=True), gradient(SIZE, "cpu", torch.bfloat16)
    return {
        work.name: timed_call(partial(regard.attend, **work.options(SIZE, "cpu")), rows, upstream) for work in WORKS
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


def training_parts() -> dict[str, float]:
    """The parts of a training call with a window, each timed alone."""
    rows, upstream = inputs(SIZE, "cpu", torch.bfloat16, grad=True), gradient(SIZE, "cpu", torch.bfloat16)
    options = dict(WORKS[0].options(SIZE, "cpu"))
    call = timed_call(partial(regard.attend, **options), rows, upstream)
    for _ in range(3):
        call()
    run, found = _found_again(rows, options)
    direct = run.__self__
    (known,) = direct.prepared().layouts.values()
    (step,) = known.backward.values()
    likes = (
        direct.like_output,
        direct.like_logsumexp,
        direct.like_stats,
        direct.like_query,
        direct.like_key,
        direct.like_value,
    )
    counts = (5, 4, 8, 7)  # of the tensors that each launch takes
    given = [tuple(range(1 << 40, (1 << 40) + count)) for count in counts]
    steps = list(zip((known.forward, *step), given, strict=True))
    return {
        **found,
        "autograd: a function that computes nothing": microseconds(timed_call(Nothing.apply, rows, upstream)),
        "… of which its four tensors": microseconds(lambda: [torch.empty_like(rows[0]) for _ in range(4)]),
        "six tensors": microseconds(lambda: [torch.empty_like(one) for one in likes]),
        "arguments of four launches": microseconds(lambda: [one.at(0, places) for one, places in steps]),
        "whole call": microseconds(call),
    }


def decoding_parts() -> dict[str, float]:
    """The parts of decoding one token, each timed alone."""
    call = decoding()["plain"]
    for _ in range(3):
        call()
    run, found = _found_again(list(call.args), {})  # type: ignore[attr-defined]
    (known,) = run.__self__.layouts.values()
    like = run.__self__.like_output
    first, second = tuple(range(6)), tuple(range(3))
    return {
        **found,
        "two tensors": microseconds(lambda: (torch.empty_like(like), torch.empty_like(known.scratch))),
        "arguments of two launches": microseconds(lambda: (known.first.at(0, first), known.second.at(0, second))),
        "whole call": microseconds(call),
    }


def _found_again(rows: list[torch.Tensor], options: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    """The kept function that runs these calls, and what it takes to find it."""
    signature = repeated_calls.signature(*rows, options)
    return repeated_calls.KNOWN[signature], {
        "signature": microseconds(lambda: repeated_calls.signature(*rows, options)),
        "look into the table": microseconds(lambda: repeated_calls.KNOWN.get(signature)),
    }


def main() -> None:
    """Print one line for each call."""
    torch.set_num_threads(1)
    for name, call in peers().items():
        _print(name, microseconds(call))
    with unlaunched():
        for name, call in training().items():
            _print(f"forward+backward, {name}", microseconds(call))
        for name, spent in training_parts().items():
            _print(f"  by part, window: {name}", spent)
        with torch.no_grad():
            for title, calls in (("forward", forward()), ("one token", decoding())):
                for name, call in calls.items():
                    _print(f"{title}, {name}", microseconds(call))
            for name, spent in decoding_parts().items():
                _print(f"  by part, one token: {name}", spent)


def _print(name: str, spent: float) -> None:
    print(f"{name:66s} {spent:7.2f} µs")


if __name__ == "__main__":
    main()
