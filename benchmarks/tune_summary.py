"""Block sizes of `summarize` on a GPU: python -m benchmarks.tune_summary --out tune.jsonl

Each choice is compiled by a process of its own, all side by side; then every one is checked against the first and timed
beside a forward pass, at 16k positions, 16 heads of 128, bfloat16. The defaults come first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.gpu_checking.timing import milliseconds

import regard
from regard.implementations.triton.summary import op as summary
from regard.implementations.triton.summary.op import SummaryBlockSizes

TOP = 8


class Choice(NamedTuple):
    """Sizes of both walks, and how keys are noted: warps, registers (0: any), programs that share the queries."""

    rows: tuple[int, int, int, int, int | None] = (128, 128, 8, 2, 128)
    columns: tuple[int, int, int, int, int | None] = (64, 128, 4, 2, 168)
    noting: tuple[int, int, int] = (4, 168, 2)


CHOICES = (
    Choice(),
    Choice(columns=(64, 128, 4, 2, None)),
    Choice(columns=(64, 128, 4, 3, 168)),
    Choice(columns=(64, 128, 4, 3, None)),
    Choice(columns=(128, 128, 8, 2, 128)),
    Choice(columns=(64, 64, 4, 3, 128)),
    Choice(noting=(8, 0, 2)),
    Choice(noting=(4, 128, 2)),
    Choice(noting=(4, 168, 4)),
    Choice(noting=(4, 168, 1)),
    Choice(rows=(128, 128, 8, 3, 128)),
    Choice(rows=(64, 128, 4, 2, None)),
)


def choose(choice: Choice) -> None:
    """Let `summarize` use these sizes."""
    warps, registers, shares = choice.noting
    limit = {"maxnreg": registers} if registers else {}
    summary.rows_shape = lambda d, dtype: SummaryBlockSizes(*choice.rows)
    summary.columns_shape = lambda d, dtype: SummaryBlockSizes(*choice.columns)
    summary.NOTING = {"num_warps": warps, "num_stages": 1, **limit}
    summary.SHARES = shares


def drawn() -> list[torch.Tensor]:
    """Queries, keys and values."""
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(1, 16, 16384, 128, device="cuda", generator=generator).bfloat16() for _ in range(3)]


def measured(choice: Choice, rows: list[torch.Tensor], first: Any) -> dict[str, Any]:
    """How far from the first choice's summary, and times."""
    query, key, value = rows
    choose(choice)
    found = regard.summarize(query, key, top=TOP)
    apart = {
        part: float((getattr(found, part) - getattr(first, part)).abs().max())
        for part in ("entropy", "received", "top_weights")
    }
    times = milliseconds(
        {
            "summarize": lambda: regard.summarize(query, key, top=TOP),
            "no notes": lambda: regard.summarize(query, key, top=0),
            "attend": lambda: regard.attend(query, key, value),
        },
        count=5,
        groups=5,
    )
    return {"ratio": times["summarize"] / times["attend"], "ms": times, "apart": apart}


def main() -> None:
    """Compile side by side, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file to which results are appended, one line of JSON each")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile is not None:
        choose(CHOICES[given.compile])
        regard.summarize(*drawn()[:2], top=TOP)
        torch.cuda.synchronize()
        return
    command = [sys.executable, "-m", "benchmarks.tune_summary", "--compile"]
    running = [subprocess.Popen([*command, str(number)]) for number in range(len(CHOICES))]
    for process in running:
        process.wait(90)
    rows = drawn()
    choose(CHOICES[0])
    first = regard.summarize(*rows[:2], top=TOP)
    for choice in CHOICES:
        try:
            found = measured(choice, rows, first)
        except Exception as problem:
            found = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
        line = json.dumps({**choice._asdict(), **found})
        print(line, flush=True)
        if given.out:
            with Path(given.out).open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
