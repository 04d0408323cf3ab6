"""A call as one CUDA graph: replaying it takes the time of the kernels, without the host's time to issue them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch

Result = TypeVar("Result")
WARM_CALLS = 3  # compile, plan and allocate before the capture, during which none of that may happen


class CapturedCall(NamedTuple, Generic[Result]):
    """Runs the captured kernels again, which write their results where those of the first call lie."""

    replay: Callable[[], None]
    result: Result


def captured(call: Callable[[], Result]) -> CapturedCall[Result]:
    """Capture a call, after a few on a stream of their own, as torch wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # waits for the device first
        result = call()
    return CapturedCall(graph.replay, result)
