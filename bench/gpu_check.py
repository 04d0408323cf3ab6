"""Check the Triton kernels on a GPU in one short run: python -m bench.gpu_check --out results.jsonl

Two stages by default, each with its own limit of time (`--seconds`):

- warm: other processes compile what the later stages need, and end before those time anything;
- check: streams, threads, CUDA graphs, memory that is used again, changed masks, odd layouts, determinism,
  torch.compile, decoding; then outputs and gradients against float64, for masks × widths × dtypes × lengths; summaries.

Two more are asked for by name (`--stages warm,normalizers,regret`):

- normalizers: sigmoid, sparsemax, entmax15 and hard against float64;
- regret: 200 random requests under every implementation; how much slower `auto`'s choice is than the best.

Every result is one line of JSON, written at once. A case that fails is recorded with its traceback, and the others go
on. Times beside peers are those of `regard bench --device cuda`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.cases.gpu.warm import taken, written
from bench.gpu_checking.circumstances import ALL
from bench.gpu_checking.formula import BOUNDS, DEVICE, configurations, error, options, rows, same, trained
from bench.gpu_checking.normalizers import compile_once, normalizers
from bench.gpu_checking.normalizers import configurations as normalized
from bench.gpu_checking.regret import by_kind, regret
from bench.gpu_checking.report import Report
from bench.gpu_checking.summaries import CASES as SUMMARIES
from bench.gpu_checking.summaries import summarized

SECONDS = {"warm": 55, "check": 45, "normalizers": 60, "regret": 100}


def check(report: Report) -> None:
    """Compare with float64."""
    from regard.implementations.triton.launch import raw_launches

    refused = raw_launches.refusal(torch.device(DEVICE, 0))
    report.write("check", "raw launches", refused=refused, torch=torch.__version__, gpu=torch.cuda.get_device_name())
    for circumstance in ALL:
        report.try_case("check", circumstance.__name__.replace("_", " "), circumstance)
    for name, d, dtype, n in configurations():
        report.try_case("check", f"{name} n{n} d{d} {str(dtype)[6:]}", partial(compare_with_float64, name, d, dtype, n))
    for case in SUMMARIES:
        report.try_case("check", "summary of {} d{} n{}".format(*case), partial(summarized, *case))


def compare_with_float64(name: str, d: int, dtype: torch.dtype, n: int) -> dict[str, Any]:
    """Errors of output and gradients in two heads, and whether a second run gives equal bits."""
    given, asked = rows(2, 4, n, d, dtype=dtype), options(name, n, 4)
    first, second = trained(*given, **asked), trained(*given, **asked)
    off, equal = max(error(name, first, given, head) for head in (0, 3)), same(first, second)
    return {"error": off, "same_bits": equal, "ok": equal and off < BOUNDS[dtype]}


def jobs_ahead(stages: str) -> list[Callable[[], Any]]:
    """What warming processes run once, so that it is compiled."""
    jobs: list[Callable[[], Any]] = []
    if "regret" in stages:
        jobs += by_kind()
    if "check" in stages:
        jobs += [partial(summarized, *case) for case in SUMMARIES]
        jobs += [partial(run_once, *case) for case in configurations() if case[3] != 4096]
        jobs += ALL
    if "normalizers" in stages:
        jobs += [partial(compile_once, *case) for case in normalized()]
    return jobs


def compile_jobs(stages: str) -> None:
    """What a warming process does: it takes the next job from the pipe until none is left."""
    jobs = jobs_ahead(stages)
    for number in taken():
        try:
            jobs[int(number)]()
        except Exception:  # the stage that needs it tells
            traceback.print_exc()


def run_once(name: str, d: int, dtype: torch.dtype, n: int) -> None:
    """Compile the kernels of a configuration."""
    trained(*rows(2, 4, n, d, dtype=dtype), **options(name, n, 4))


def warm(report: Report, processes: int, stages: str) -> None:
    """Let other processes compile, so that Triton's and torch's caches on disk hold everything."""
    command = [sys.executable, "-m", "bench.gpu_check", "--stages", stages, "--compile"]
    work = written([str(number) for number in range(len(jobs_ahead(stages)))])
    running = [
        subprocess.Popen(command, stdin=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(processes)
    ]
    os.close(work)
    try:
        for process in running:
            process.wait(max(0.1, report.until - time.time()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        unfinished = sum(process.poll() is None for process in running)
        for process in running:
            process.kill()
            process.wait()
    report.write("warm", "processes", started=processes, unfinished=unfinished)


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file to which results are appended, one line of JSON each")
    parser.add_argument("--stages", default="warm,check", help="which to run, joined by commas")
    parser.add_argument("--seconds", default="", help="limits of stages, such as check=40,regret=60")
    parser.add_argument(
        "--only", default="", help="how the names of the cases to try begin, such as 'hard causal,hard 4k'"
    )
    parser.add_argument("--processes", type=int, default=12, help="how many compile at a time")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile:
        compile_jobs(given.stages)
        return
    limits = SECONDS | {pair.split("=")[0]: float(pair.split("=")[1]) for pair in given.seconds.split(",") if pair}
    report = Report(given.out, given.only)
    stages: dict[str, Callable[[Report], object]] = {
        "warm": partial(warm, processes=given.processes, stages=given.stages),
        "check": check,
        "normalizers": normalizers,
        "regret": regret,
    }
    for stage in given.stages.split(","):
        report.until = time.time() + limits[stage]
        try:
            stages[stage](report)
        except Exception:
            report.write(stage, "stage", failed=traceback.format_exc())
    report.write("end", "total", seconds=round(time.time() - report.begun, 1))


if __name__ == "__main__":
    main()
