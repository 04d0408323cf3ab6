"""Times of the kernels alone, by replaying CUDA graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Protocol


class Replayable(Protocol):
    """A CUDA graph, or a call captured in one."""

    def replay(self) -> None:
        """Run its kernels again."""


def replayed_us(function: Callable[[], Any], device: str, times: int = 50) -> float:
    """Microseconds of the kernels of a call, captured in a CUDA graph (on a CPU: of the call)."""
    if device == "cpu":
        function()
        return float("nan")
    from bench.cases.gpu.capture import captured

    return graph_us(captured(function), times)


def graph_us(graph: Replayable, times: int = 50) -> float:
    """Microseconds of one replay, the median of five groups."""
    from bench.cases.gpu.events import group

    return 1e6 * statistics.median(group(graph.replay, times, "cuda") for _ in range(5))
