"""Steps per second of a small training, and what a captured step consists of."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import traceback
from typing import Any

import torch

from bench.cases.gpu.events import group
from bench.small_checking.host import host_parts
from bench.small_checking.training import GROUP, trainer_of

WARM = 340  # steps before a timing: the smaller batch at the end of an epoch comes every 40 and is captured, too


def contestant(task: str, model: str, device: str, seconds: float, warm: Any, turn: Any, results: Any) -> None:
    """In a process of its own: warm up, wait for the turn, measure single steps, then groups."""
    named = {"task": task, "model": model}
    mode = "single"
    try:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
        torch.set_num_threads(1)
        from regard_workbench.training.signals import Signals

        count = WARM if device == "cuda" else 2
        with tempfile.TemporaryDirectory() as folder, Signals() as signals:
            trainer = trainer_of(task, model, device, device == "cuda", folder, signals)
            if device == "cuda":
                trainer.engine.graphed_step.steps_per_graph = 1
            with trainer.open():
                for _ in range(count):
                    trainer.advance()
                trainer.synchronize()
                warm.release()
                if not turn.acquire(timeout=600):
                    return
                results.put({**named, "mode": mode, **measured(trainer, seconds, device)})
                mode = "grouped"
                if device == "cuda":
                    if not turn.acquire(timeout=600):
                        return
                    trainer.engine.graphed_step.steps_per_graph = GROUP
                    for _ in range(count):
                        trainer.advance()
                    trainer.synchronize()
                    results.put({**named, "mode": mode, **measured(trainer, seconds, device)})
    except Exception:
        warm.release()
        results.put({**named, "mode": mode, "error": traceback.format_exc()})


def measured(trainer: Any, seconds: float, device: str) -> dict[str, Any]:
    """Steps per second of the loop; device time and kernels of a captured step; host time of parts of the loop."""
    readings: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or not readings:
        start, taken = time.perf_counter(), 0
        while time.perf_counter() - start < min(0.25, seconds) or not taken:
            trainer.advance()
            taken += 1
        trainer.synchronize()
        readings.append(taken / (time.perf_counter() - start))
    found: dict[str, Any] = {
        "steps_per_second": statistics.median(readings),
        "readings": [round(one) for one in readings],
    }
    graphed = getattr(trainer.engine, "graphed_step", None)
    if device == "cuda" and getattr(graphed, "captured", None):
        found["host_parts_us"] = host_parts(trainer)
        captured = next(iter(graphed.captured.values()))
        groups = [group for group in graphed.groups.values() if group is not None]
        if groups:
            found["grouped_us"] = graph_us(groups[0].graph, 10) / groups[0].count
        else:
            found["device_us"] = graph_us(captured.graph)
            found |= kernels_of(captured.graph)
    return found


def graph_us(graph: Any, times: int = 50) -> float:
    """Microseconds of one replay, the median of five groups."""
    return 1e6 * statistics.median(group(graph.replay, times, "cuda") for _ in range(5))


def kernels_of(graph: Any) -> dict[str, Any]:
    """The number of kernels of a captured step, their time, and the longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profile.events():
        times.setdefault(event.name[:80], []).append(event.device_time)
    longest = sorted(((sum(one), len(one), name) for name, one in times.items()), reverse=True)
    return {
        "kernels": sum(map(len, times.values())),
        "kernel_us": round(sum(map(sum, times.values())), 1),
        "longest": [(round(total, 1), count, name) for total, count, name in longest[:25]],
    }
