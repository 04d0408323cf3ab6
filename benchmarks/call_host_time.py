"""Print attend's own host time for repeated calls on a CPU: torch's function is replaced by one that returns at once.

    python -m benchmarks.call_host_time

Microseconds of thread time, the lower quartile of many blocks: what other processes take is not in it. "beyond torch"
is `attend` minus the call of torch's function that a user would write instead, both with their arithmetic.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import regard
from regard import masks

HOMES = ("regard.implementations.sdpa", "regard.implementations.sdpa_calls")
BLOCK, BLOCKS, WARM = 100, 60, 200
HEADS, SHARED, CACHE, WIDTH = 8, 2, 512, 32


def microseconds(call: Callable[[], object]) -> float:
    """The thread time of one call."""
    for _ in range(WARM):
        call()
    found = []
    for _ in range(BLOCKS):
        begun = time.thread_time()
        for _ in range(BLOCK):
            call()
        found.append((time.thread_time() - begun) / BLOCK * 1e6)
    return sorted(found)[BLOCKS // 4]


def cases() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """For each case our call, and torch's that computes the same."""
    small = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    query = torch.randn(1, HEADS, 1, WIDTH)
    own = [torch.randn(1, HEADS, CACHE, WIDTH) for _ in range(2)]
    shared = [torch.randn(1, SHARED, CACHE, WIDTH) for _ in range(2)]
    causal, lengths = masks.causal(), masks.lengths(torch.tensor([CACHE - 7]))
    dense = (torch.arange(CACHE) < CACHE - 7)[None, None, None]
    sdpa = F.scaled_dot_product_attention
    return {
        "plain, 16 queries": (lambda: regard.attend(*small), lambda: sdpa(*small)),
        "one query": (lambda: regard.attend(query, *own), lambda: sdpa(query, *own)),
        "one query, causal": (lambda: regard.attend(query, *own, mask=causal), lambda: sdpa(query, *own)),
        "one query, causal made anew": (
            lambda: regard.attend(query, *own, mask=masks.causal()),
            lambda: sdpa(query, *own),
        ),
        "one query, grouped heads": (
            lambda: regard.attend(query, *shared),
            lambda: sdpa(query, *shared, enable_gqa=True),
        ),
        "one query, lengths": (lambda: regard.attend(query, *own, mask=lengths), lambda: sdpa(query, *own, dense)),
    }


@torch.no_grad()
def main() -> None:
    """Print one line for each case."""
    torch.set_num_threads(1)
    beyond = {name: microseconds(ours) - microseconds(torchs) for name, (ours, torchs) in cases().items()}
    found = {1: torch.randn(1, HEADS, 1, WIDTH), 16: torch.randn(1, 2, 16, 16)}

    def stub(query: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
        return found[query.shape[2]]

    for home in HOMES:
        try:
            importlib.import_module(home).scaled_dot_product_attention = stub  # type: ignore[attr-defined]
        except ModuleNotFoundError:
            continue
    for name, (ours, _) in cases().items():
        print(f"{name:30s} own {microseconds(ours):6.2f} µs   beyond torch {beyond[name]:6.2f} µs")


if __name__ == "__main__":
    main()
