"""Compiling before anything is timed, in several processes at once.

FlexAttention compiles five to nine seconds for every mask and shape, torch.compile longer for a model. Torch and Triton
keep what they compiled on disk, so other processes can do that work side by side; the one that times finds it there.
That one loads the compiler meanwhile.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch

from regard_workbench.bench.case import CASES, Case, Setting

CHECKOUT = Path(__file__).resolve().parents[3]  # where other processes find `bench`
MOST = 15  # processes
WORTH = 4  # jobs: fewer are compiled where they are timed
PATIENCE = 120.0  # seconds for all of them together …
SHARE = 0.4  # … and the part of the time of a run that has a limit
RECORD = 64  # bytes of a job in the pipe


def compile_ahead(cases: Sequence[Case], setting: Setting, seconds: float = math.inf) -> int:
    """Have other processes compile for these cases; how many did. What fails there fails again where it counts.

    `seconds`: how long the whole run may take. Whoever is free takes the next case, those that come first first.
    """
    jobs = in_turns(cases)
    workers = min(MOST, (os.cpu_count() or 1) - 2, len(jobs))
    if setting.device != "cuda" or len(jobs) < WORTH or workers < 2:
        return 0
    command = [sys.executable, "-c", "from bench.cases.gpu.warm import child; child()"]
    # One of them compiles with one process of its own: together they fill the machine.
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    work = written(jobs)
    children = [
        subprocess.Popen(
            command, cwd=CHECKOUT, env=env, stdin=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(workers)
    ]
    os.close(work)
    until = time.monotonic() + min(PATIENCE, SHARE * seconds)
    load_compiler()
    for one in children:
        try:
            one.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
    return workers


def in_turns(cases: Sequence[Case]) -> list[str]:
    """The jobs of these cases as "name job"; families take turns.

    Cases of one family share kernels: far apart, the first has compiled them when another process comes to the next.
    """
    place: dict[str, int] = {}
    found: list[tuple[int, str]] = []
    for one in cases:
        family = one.name.split("-")[0]
        for job in range(len(one.ahead)):
            found.append((place.setdefault(family, 0), f"{one.name} {job}"))
        place[family] = place.get(family, 0) + 1
    return [words for _, words in sorted(found, key=lambda pair: pair[0])]


def load_compiler() -> None:
    """Have this process import and start what its first case would otherwise wait for."""
    import_module("torch._inductor.compile_fx")
    import_module("torch.nn.attention.flex_attention")
    with suppress(RuntimeError):
        for dtype in (torch.float64, torch.bfloat16):
            rows = torch.ones(64, 64, device="cuda", dtype=dtype)
            (rows @ rows).sum().item()


def written(jobs: Sequence[str]) -> int:
    """The end to read of a pipe with the jobs, each as one record; they fit into it."""
    end, start = os.pipe()
    for job in jobs:
        os.write(start, job.encode().ljust(RECORD))
    os.close(start)
    return end


def taken(work: int = 0) -> Iterator[str]:
    """The jobs that a process gets from the pipe, by default its standard input, until none is left."""
    while record := os.read(work, RECORD):
        yield record.decode().strip()


def child(work: int = 0) -> None:
    """One of the processes: it does the jobs that it gets."""
    for record in taken(work):
        name, job = record.split()
        with suppress(Exception):
            CASES[name].ahead[int(job)](Setting(device="cuda"))
