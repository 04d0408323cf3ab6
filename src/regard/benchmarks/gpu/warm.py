"""Compiling before anything is timed, in several processes at once.

FlexAttention compiles five to nine seconds for every mask and shape, torch.compile longer for a model. Torch and Triton
keep what they compiled on disk, so other processes can do that work side by side; the one that times finds it there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from regard.benchmarks.case import CASES, Case, Setting

MOST = 15  # processes
WORTH = 4  # cases: fewer are compiled where they are timed
PATIENCE = 120.0  # seconds for all of them together


def compile_ahead(cases: Sequence[Case], setting: Setting) -> int:
    """Have other processes compile for these cases; how many did. What fails there fails again where it counts."""
    names = [one.name for one in cases if one.ahead is not None]
    workers = min(MOST, (os.cpu_count() or 1) - 2, len(names))
    if setting.device != "cuda" or len(names) < WORTH or workers < 2:
        return 0
    command = [sys.executable, "-c", "from regard.benchmarks.gpu.warm import child; child()"]
    # One of them compiles with one process of its own: together they fill the machine.
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    children = [
        subprocess.Popen(
            [*command, json.dumps(names[first::workers])],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for first in range(workers)
    ]  # fmt: skip
    until = time.monotonic() + PATIENCE
    for one in children:
        try:
            one.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
    return workers


def child() -> None:
    """One of the processes: the names of its cases stand on the command line."""
    for name in json.loads(sys.argv[1]):
        ahead = CASES[name].ahead
        with suppress(Exception):
            if ahead is not None:
                ahead(Setting(device="cuda"))
