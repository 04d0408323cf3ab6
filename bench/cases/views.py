"""`weights` and `summarize` on a long sequence, without an n×n array."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

import regard
from bench.cases.memory import extra_memory
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import slowdown

N, D, ROWS, TOP = 16384, 64, 16, 8
SHAPE = f"b1 h1 n{N} d{D}"


def _inputs(device: str, length: int = N) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, length, D, generator=generator).to(device) for _ in ("query", "key", "value")]


def some_rows(device: str, small: bool) -> Callable[[], object]:
    """Exact weights of sixteen queries spread over the sequence."""
    length = 512 if small else N
    query, key, _ = _inputs(device, length)
    rows = list(range(0, length, length // ROWS))
    return lambda: regard.weights(query, key, rows=rows)


def summary(device: str, small: bool) -> Callable[[], object]:
    """Entropy, received weight, top keys and log-sum-exp of every query."""
    query, key, _ = _inputs(device, 512 if small else N)
    return lambda: regard.summarize(query, key, top=TOP)


@case(
    "weights-memory",
    work=f"weights(rows={ROWS} rows), {SHAPE}",
    peer="(all weights: 1 GiB)",
    unit="MiB extra",
    at_most=64,
)
def weights_memory(setting: Setting) -> Measurement:
    """Peak memory beyond the inputs."""
    return extra_memory(some_rows, setting)


@case(
    "summarize-memory",
    work=f"summarize(top={TOP}), {SHAPE}",
    peer="(all weights: 1 GiB)",
    unit="MiB extra",
    at_most=256,
)
def summarize_memory(setting: Setting) -> Measurement:
    """Peak memory beyond the inputs."""
    return extra_memory(summary, setting)


@case("summarize-time", work=f"summarize(top={TOP}), {SHAPE}", peer="SDPA forward", unit="× time", at_most=4)
def summarize_time(setting: Setting) -> Measurement:
    """A summary of all rows beside the fused forward pass, which keeps none of them."""
    query, key, value = _inputs(setting.device)
    return slowdown(summary(setting.device, False), lambda: F.scaled_dot_product_attention(query, key, value), setting)
