"""Timing two calls side by side.

The speed of a machine drifts with its clocks and its load. Timing all of A and then all of B would put that drift into
the ratio. So the two alternate (A, B, A, B, …), every pair gives one ratio, and the result is the median of the ratios
with its quartiles.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from regard_workbench.bench.case import Measurement, Setting

TimedCall = Callable[[], object]

SHORT_PAIRS = 40  # pairs for calls well under a second …
SHORT_BUDGET = 15.0  # … and more, up to MOST_PAIRS, while they fit in this many seconds
MOST_PAIRS = 120
LONG_BUDGET = 45.0  # seconds to spend on a case whose calls are long …
LONG_PAIRS = 5  # … but never fewer pairs than this


def slowdown(ours: TimedCall, peer: TimedCall, setting: Setting, impl: str = "") -> Measurement:
    """Our time divided by the peer's: 1.05 means five per cent slower."""
    pairs = _alternate(ours, peer, setting)
    return _summary([a / b for a, b in pairs], pairs, impl)


def speedup(ours: TimedCall, peer: TimedCall, setting: Setting, impl: str = "") -> Measurement:
    """The peer's time divided by ours: 20 means twenty times as fast."""
    pairs = _alternate(ours, peer, setting)
    return _summary([b / a for a, b in pairs], pairs, impl)


def overhead(ours: TimedCall, peer: TimedCall, setting: Setting, impl: str = "") -> Measurement:
    """Microseconds that a call of ours takes beyond the peer's.

    A clock does not resolve one call of a few microseconds, so blocks of calls alternate. The blocks are well under a
    millisecond long, so that most of them are not interrupted by the scheduler.
    """
    calls, blocks = (20, 100) if setting.quick else (20, 600)

    def block(call: TimedCall) -> TimedCall:
        def many() -> None:
            for _ in range(calls):
                call()

        return many

    pairs = _alternate(block(ours), block(peer), setting, count=blocks)
    pairs = [(a / calls, b / calls) for a, b in pairs]
    return _summary([(a - b) * 1e6 for a, b in pairs], pairs, impl)


def _alternate(
    ours: TimedCall, peer: TimedCall, setting: Setting, count: int | None = None
) -> list[tuple[float, float]]:
    """Seconds of both calls, pair by pair, after a warm-up that also tells how many pairs are affordable."""
    with without_garbage_collection():
        _seconds(ours, setting), _seconds(peer, setting)
        first = _seconds(ours, setting), _seconds(peer, setting)
        count = count or _affordable(sum(first), setting.quick)
        return [(_seconds(ours, setting), _seconds(peer, setting)) for _ in range(count)]


def _affordable(pair_seconds: float, quick: bool) -> int:
    def fitting(budget: float) -> int:
        return int(budget / max(pair_seconds, 1e-9))

    if quick:
        return max(2, min(10, fitting(6.0)))
    return max(LONG_PAIRS, min(SHORT_PAIRS, fitting(LONG_BUDGET)), min(MOST_PAIRS, fitting(SHORT_BUDGET)))


def _seconds(call: TimedCall, setting: Setting) -> float:
    start = time.perf_counter()
    result = call()
    if setting.device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    del result  # freed outside the clock, as a caller who keeps the output would see it
    return elapsed


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch Python's cycle collector off, which would run at arbitrary moments of a reading."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _summary(readings: list[float], pairs: list[tuple[float, float]], impl: str) -> Measurement:
    ours, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Measurement.of(readings, ours=ours, peer=peer, impl=impl)
