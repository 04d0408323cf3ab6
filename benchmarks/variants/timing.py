"""Times of calls under settings that take turns, and of their kernels alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.variants.cases import DEVICE
from benchmarks.variants.settings import Context

from regard_workbench.bench.gpu.capture import captured
from regard_workbench.bench.gpu.events import group

CALLS, ROUNDS = 20, 5


def measured(calls: dict[str, tuple[Context, Callable[[], Any]]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds of each call in its context, in groups that take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (context, call) in calls.items():
            with context:
                for _ in range(3):
                    call()
                found[name].append(1e3 * group(call, CALLS, DEVICE))
    return {name: statistics.median(each) for name, each in found.items()}


def back_to_back(call: Callable[[], Any]) -> float:
    """Median milliseconds of a call among others of its kind."""
    return statistics.median(1e3 * group(call, CALLS, DEVICE) for _ in range(ROUNDS))


def alone(call: Callable[[], Any]) -> float | str:
    """Milliseconds of the kernels alone: the call in a CUDA graph; or why it cannot be captured."""
    try:
        graph = captured(call)
        graph.replay()
        return round(back_to_back(graph.replay), 4)
    except Exception as problem:
        torch.cuda.synchronize()
        return f"{type(problem).__name__}: {str(problem)[:120]}"
