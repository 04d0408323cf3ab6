"""Layers: what a window saves in training, and how `linear` and `global-query` grow with the length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import regard.nn
from bench.cases.memory import extra_memory
from regard.nn.parts.global_query import global_query
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import slowdown, speedup

DIM, HEADS, N, WINDOW = 256, 4, 16384, 257
SHORT, LONG, WIDTH = 4096, 65536, 64
MOST = 1 << 20


def _rows(device: str, length: int, width: int, count: int = 1) -> list[torch.Tensor]:
    """Inputs that receive gradient; then the output's gradient."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(1, length, width, generator=generator).to(device) for _ in range(count + 1)]
    return [*[tensor.requires_grad_() for tensor in made[:-1]], made[-1]]


def _training_step(layer: nn.Module, rows: torch.Tensor, upstream: torch.Tensor) -> Callable[[], object]:
    targets = [rows, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(rows), targets, upstream)


@case(
    "local-vs-global",
    work=f"local layer, window {WINDOW}, b1 n{N} dim {DIM} h{HEADS}, forward+backward",
    peer="global layer",
    unit="× faster",
    at_least=8,
)
def local_versus_global(setting: Setting) -> Measurement:
    """The same projections around both; only the attention differs."""
    rows, upstream = _rows(setting.device, N, DIM)
    local = regard.nn.build("local", dim=DIM, num_heads=HEADS, window=WINDOW).to(setting.device)
    everything = regard.nn.build("global", dim=DIM, num_heads=HEADS).to(setting.device)
    return speedup(_training_step(local, rows, upstream), _training_step(everything, rows, upstream), setting, "layer")


def _growth(setting: Setting, name: str) -> Measurement:
    """Time at the long length divided by time at the short one; the lengths themselves differ by a factor of 16."""
    layer = regard.nn.build(name, dim=WIDTH).to(setting.device)
    long, short = (_training_step(layer, *_rows(setting.device, length, WIDTH)) for length in (LONG, SHORT))
    return slowdown(long, short, setting, "layer")


for _name in ("linear", "global-query"):
    case(
        f"{_name}-growth",
        work=f"{_name} layer, b1 n{LONG} dim {WIDTH}, forward+backward",
        peer=f"itself at n{SHORT}",
        unit="× time",
        at_most=20,
    )(partial(_growth, name=_name))


def million(device: str, small: bool) -> Callable[[], object]:
    """The call whose memory is measured."""
    query, key, hidden, upstream = _rows(device, 4096 if small else MOST, WIDTH, count=3)
    return lambda: torch.autograd.grad(global_query(query, key, hidden), (query, key, hidden), upstream)


# The output and three gradients are 256 MiB each. Once more 256 are left for scores, for pieces in flight, and for the
# gradient of `hidden`, which comes in two parts (through the mean and directly) that exist side by side for a while.
@case(
    "global-query-memory",
    work=f"global_query, b1 n{MOST} d{WIDTH}, forward+backward",
    peer="(output and gradients: 1024 MiB)",
    unit="MiB extra",
    at_most=1280,
)
def global_query_memory(setting: Setting) -> Measurement:
    """Peak memory beyond the inputs, output and gradients included."""
    return extra_memory(million, setting)
