"""Compiling before anything is timed, in several processes at once.

FlexAttention compiles five to nine seconds for every mask and shape, torch.compile longer for a model. Torch and Triton
keep what they compiled on disk, so other processes can do that work side by side; the one that times finds it there.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from regard.benchmarks.case import CASES, Case, Setting

MOST = 15  # processes
WORTH = 4  # cases: fewer are compiled where they are timed
PATIENCE = 120.0  # seconds for all of them together …
SHARE = 0.4  # … and the part of the time of a run that has a limit
RECORD = 64  # bytes of a name in the pipe


def compile_ahead(cases: Sequence[Case], setting: Setting, seconds: float = math.inf) -> int:
    """Have other processes compile for these cases; how many did. What fails there fails again where it counts.

    `seconds`: how long the whole run may take. Whoever is free takes the next case, those that come first first.
    """
    names = [one.name for one in cases if one.ahead is not None]
    workers = min(MOST, (os.cpu_count() or 1) - 2, len(names))
    if setting.device != "cuda" or len(names) < WORTH or workers < 2:
        return 0
    command = [sys.executable, "-c", "from regard.benchmarks.gpu.warm import child; child()"]
    # One of them compiles with one process of its own: together they fill the machine.
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    work = written(names)
    children = [
        subprocess.Popen(command, env=env, stdin=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(workers)
    ]
    os.close(work)
    until = time.monotonic() + min(PATIENCE, SHARE * seconds)
    for one in children:
        try:
            one.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
    return workers


def written(names: Sequence[str]) -> int:
    """The end to read of a pipe with the names, each as one record; they fit into it."""
    end, start = os.pipe()
    for name in names:
        os.write(start, name.encode().ljust(RECORD))
    os.close(start)
    return end


def child(work: int = 0) -> None:
    """One of the processes: it takes names of cases from the pipe, its standard input, until none is left."""
    while record := os.read(work, RECORD):
        ahead = CASES[record.decode().strip()].ahead
        with suppress(Exception):
            if ahead is not None:
                ahead(Setting(device="cuda"))
