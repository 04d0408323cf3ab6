"""Extra peak memory of one call, measured in a process of its own.

A process that has already run something keeps freed memory around and hides what the next call needs, so each
reading starts a fresh interpreter: it builds the inputs, runs the same work once on a small size (imports and
lazily loaded libraries are not the call's memory), resets the high-water mark, runs the call, and reports how
far the mark rose above what was in use before. Outputs and gradients count; inputs do not.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from regard_workbench.bench.case import Measurement, Setting
from regard_workbench.comparison.memory import peak_memory

CHECKOUT = Path(__file__).resolve().parents[2]
MIB = 2**20
PATIENCE = 30.0  # seconds after which no further reading is started

# Given the device and whether to build the small size, makes the inputs and returns the call to measure.
Prepare = Callable[[str, bool], Callable[[], object]]


def extra_memory(prepare: Prepare, setting: Setting, impl: str = "") -> Measurement:
    """Peak memory in MiB that the prepared call needs beyond its inputs.

    The median of three fresh processes; fewer when they take long, since readings differ by well under one percent.
    """
    start = time.perf_counter()
    readings = [_in_child(prepare, setting)]
    while len(readings) < 3 and not setting.quick and time.perf_counter() - start < PATIENCE:
        readings.append(_in_child(prepare, setting))
    return Measurement.of(readings, impl=impl)


def memory_ratio(ours: Prepare, theirs: Prepare, setting: Setting, impl: str) -> Measurement:
    """The extra memory of a prepared call, divided by that of a peer's."""
    own, peer = extra_memory(ours, setting, impl), extra_memory(theirs, setting)
    return replace(
        own,
        value=own.value / peer.value,
        low=own.low / peer.high,
        high=own.high / peer.low,
        details={"ours_mib": own.value, "peer_mib": peer.value},
    )


def _in_child(prepare: Prepare, setting: Setting) -> float:
    task = {
        "module": prepare.__module__,
        "function": prepare.__qualname__,
        "device": setting.device,
        "threads": setting.threads,
    }
    done = subprocess.run(
        [sys.executable, "-c", "from bench.cases.memory import child; child()", json.dumps(task)],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,  # where the child finds `bench`
        # Spinning threads would take minutes on a busy machine.
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"measuring the memory of {task['function']!r} failed with code {done.returncode} "
            f"(a negative code is a signal; -9 usually means out of memory):\n{done.stderr[-2000:]}"
        )
    return float(json.loads(done.stdout.splitlines()[-1])["extra_mib"])


def child() -> None:
    """The fresh process: read the task from the command line, print the reading as one line of JSON."""
    task = json.loads(sys.argv[1])
    if task["device"] == "cpu":
        torch.set_num_threads(task["threads"])
    prepare: Prepare = getattr(importlib.import_module(task["module"]), task["function"])
    prepare(task["device"], True)()
    call = prepare(task["device"], False)
    gc.collect()
    with peak_memory(torch.device(task["device"])) as grown:
        result = call()  # kept: what a call returns counts
        reading = grown()
    del result
    print(json.dumps({"extra_mib": reading / MIB}))


def known_allocation(device: str, small: bool) -> Callable[[], object]:
    """Work of known size, to check the measurement itself: 256 MiB written, of which 128 are freed half-way."""
    rows = 2 if small else 64

    def call() -> torch.Tensor:
        first = torch.ones(rows * MIB // 2, device=device)
        second = torch.ones(rows * MIB // 2, device=device)
        del first
        return second

    return call
