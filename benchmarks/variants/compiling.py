"""Other processes compile everything before it is timed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.variants.cases import CASES, DEVICE, DTYPE, WORKS, Case
from benchmarks.variants.settings import forget, tried
from benchmarks.variants.trying import ours, trained

from regard_workbench.bench.gpu import peers
from regard_workbench.bench.gpu.work import gradient, inputs, timed_call


def is_chosen(name: str, only: str) -> bool:
    """Whether a case's name contains one of the parts that `only` joins by commas; "" chooses every case."""
    return not only or any(word in name for word in only.split(",") if word)


def compile_part(part: int, parts: int, only: str) -> None:
    """What a process that compiles does: its share of the settings, and of FlexAttention's calls."""
    jobs: list[Callable[[], Any]] = []
    for case in CASES:
        if not is_chosen(case.name, only):
            continue
        jobs.append(partial(compile_flex, case))
        jobs += [partial(compile_setting, case, number) for number in range(len(case.variants) + 1)]
    for job in jobs[part::parts]:
        try:
            job()
        except Exception:  # where it is timed, it tells
            forget()


def compile_setting(case: Case, number: int) -> None:
    """One setting of a case."""
    settings = tried(case)
    if number < len(settings):
        work, size = WORKS[case.work], case.size
        tensors = inputs(size, DEVICE, DTYPE, grad=case.train)
        upstream = gradient(size, DEVICE, DTYPE) if case.train else None
        with settings[number][1]:
            trained(partial(ours, work.options(size, DEVICE)), tensors, upstream)


def compile_flex(case: Case) -> None:
    """FlexAttention."""
    tensors = inputs(case.size, DEVICE, DTYPE, grad=case.train)
    upstream = gradient(case.size, DEVICE, DTYPE) if case.train else None
    timed_call(peers.flex(WORKS[case.work], case.size, DEVICE), tensors, upstream)()


def warm(processes: int, seconds: float, only: str) -> int:
    """Let other processes compile the chosen cases; how many were stopped."""
    command = [sys.executable, "-m", "benchmarks.kernel_variants", "--only", only, "--compile"]
    running = [
        subprocess.Popen(
            [*command, str(part), str(processes)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for part in range(processes)
    ]
    until, stopped = time.time() + seconds, 0
    for process in running:
        try:
            process.wait(max(0.1, until - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            stopped += 1
    return stopped
