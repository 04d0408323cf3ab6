"""Timing several calls side by side on a device.

A clock on the host sees when work was sent, not when it was done, so device events stand around groups of back-to-back
calls. The groups of all contestants alternate (A, B, C, A, B, C, …): the chip's clock drifts, and every round gives one
ratio; the median of those is the number.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from regard_workbench.bench.case import Measurement, Setting
from regard_workbench.bench.timing import TimedCall, without_garbage_collection

CALLS, GROUPS = 20, 7  # calls in a group, groups of each contestant
LONGEST_GROUP = 0.08  # seconds: groups of long calls have fewer; events resolve a microsecond …
FEW = 4  # … but not fewer than these
FAR_BEHIND = 3.0  # times slower than another one: cannot be the best, and gets no more than FEW
TOO_LONG = 0.1  # seconds of a call: one is a group


@dataclass(frozen=True)
class Times:
    """Seconds of a call, for each contestant, one reading a round; and why some could not run."""

    seconds: Mapping[str, list[float]]
    refused: Mapping[str, str]

    def median(self, name: str) -> float:
        """The middle reading of one contestant."""
        return statistics.median(self.seconds[name])

    def fastest(self, names: Mapping[str, object] | list[str]) -> str:
        """The quickest of those that ran; empty if none did."""
        ran = [name for name in names if name in self.seconds]
        return min(ran, key=self.median, default="")

    def ratios(self, above: str, below: str) -> list[float]:
        """The time of one divided by that of another, round by round."""
        return [a / b for a, b in zip(self.seconds[above], self.seconds[below], strict=True)]

    def each(self) -> dict[str, float | str]:
        """What everyone took, or why not, for machines."""
        taken: dict[str, float | str] = {name: self.median(name) for name in self.seconds}
        return {**taken, **self.refused}


def side_by_side(contestants: Mapping[str, TimedCall], setting: Setting, must: str = "ours") -> Times:
    """Time the contestants alternately. One that raises is left out, with its message kept; `must` has to run."""
    device = setting.device
    calls: dict[str, int] = {}
    quickest = math.inf
    refused: dict[str, str] = {}
    with without_garbage_collection(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers tell at length why they do not run; their error says it again
        for name, call in contestants.items():
            try:
                call()  # compiles, loads, plans
                once = group(call, 1, device)
            except Exception as trouble:
                if name == must:
                    raise
                refused[name] = first_line(trouble)
                continue
            quickest = min(quickest, once)
            calls[name] = calls_in_a_group(once, quickest)
            group(call, min(calls[name], FEW) if once > LONGEST_GROUP / CALLS else calls[name], device)
        rounds = 3 if setting.quick else GROUPS
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, count in calls.items():
                seconds[name].append(group(contestants[name], count, device))
    return Times(seconds, refused)


def calls_in_a_group(once: float, quickest: float) -> int:
    """How many calls of `once` seconds stand between two events."""
    fitting = int(LONGEST_GROUP / max(once, 1e-9))
    if once > FAR_BEHIND * quickest:
        return max(1, min(FEW, fitting))
    return 1 if once > TOO_LONG else max(FEW, min(CALLS, fitting))


def group(call: TimedCall, count: int, device: str) -> float:
    """Seconds of one call among `count` back-to-back ones, by the device's own clock."""
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count


def compared(
    times: Times,
    against: list[str],
    *,
    faster: bool,
    impl: str,
    ours: str = "ours",
    details: Mapping[str, object] | None = None,
) -> Measurement:
    """Our time against that of the fastest of some peers: as a factor of speed (`faster`) or of time."""
    best = times.fastest(against)
    if not best:
        why = "; ".join(f"{name}: {words}" for name, words in times.refused.items())
        raise RuntimeError(f"no peer ran, so there is nothing to compare with ({why or 'none was given'})")
    readings = times.ratios(best, ours) if faster else times.ratios(ours, best)
    return _beside_peers(readings, times, ours, best, impl, details)


def alone(
    times: Times, *, impl: str, scale: float, ours: str = "ours", details: Mapping[str, object] | None = None
) -> Measurement:
    """Our own time, multiplied by `scale` (1e3 for milliseconds), with the quickest peer beside it."""
    best = times.fastest([name for name in times.seconds if not name.startswith(ours)])
    return _beside_peers([scale * reading for reading in times.seconds[ours]], times, ours, best, impl, details)


def _beside_peers(
    readings: list[float], times: Times, ours: str, best: str, impl: str, details: Mapping[str, object] | None
) -> Measurement:
    peers = {name: seconds for name, seconds in times.each().items() if name != ours}
    peer = times.median(best) if best else None
    return Measurement.of(
        readings, ours=times.median(ours), peer=peer, impl=impl, best=best, peers=peers, details=details or {}
    )


def host_seconds(call: TimedCall, device: str) -> float:
    """Seconds of one call by the wall clock, compilation and plan building included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def extra_bytes(call: Callable[[], object], device: str) -> int:
    """Peak bytes on the device beyond what was in use before, after one call that warms up; results count."""
    if device != "cuda":
        return 0
    call()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    torch.cuda.synchronize()
    found = torch.cuda.max_memory_allocated() - before
    del kept
    return found


def first_line(trouble: Exception) -> str:
    """The message of an error, shortened."""
    words = str(trouble).strip().splitlines()
    return f"{type(trouble).__name__}: {words[0][:160] if words else ''}"
