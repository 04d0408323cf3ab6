"""Small models in few kernels: are the kernels right on this GPU, and how fast do training steps get?

    python bench/small_check.py [--device cuda] [--seconds 1] [--patience 60] [--out FOLDER] [--only PARTS]

1. Each row-wise piece, and attention over few keys, against float64, beside the same by torch in bf16.
2. Losses of a short training with the kernels and without, dropout off; and with one step or several in a graph, which
   must be the same numbers.
3. Steps per second of the loop with one step and with several in a graph; device time and kernels of a step; where the
   host's time goes. `lstm-attention`, whose groups have crashed, is tried in groups at the very end.
4. Times of the kernels for several sizes of blocks.
All contestants of part 3 compile and warm up side by side while parts 1 and 2 run; then they are timed one after the
other; who is not warm by then is ended, so that the GPU is quiet. What fails prints its traceback, and the rest goes
on. The file of results is written anew after each answer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only what lies beside it

from bench.small_checking.losses import losses
from bench.small_checking.pieces import HEADS, SHORT, checked_head, checked_piece, checked_short, piece_cases
from bench.small_checking.processes import collect, end_the_cold, start_aside, start_contestant, take_turns
from bench.small_checking.report import Report
from bench.small_checking.training import CONTESTANTS
from bench.small_checking.tuning import compile_tuning, read_tuning, timed_pieces, tuning_cases


def main() -> int:
    """Run all parts; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of one timing")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for all to warm up")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", default="", help="parts to run: pieces, losses, steps, tuning (separated by commas)")
    parser.add_argument(
        "--set", type=read_tuning, default={}, help="sizes of blocks for the steps, as in tile=128,warps=8"
    )
    parser.add_argument(
        "--also",
        type=read_tuning,
        action="append",
        default=[],
        help="more sizes of blocks, tried with the first two models; may be repeated",
    )
    options = parser.parse_args()
    device: str = options.device
    parts = set(options.only.split(",")) if options.only else {"pieces", "losses", "steps", "tuning"}
    report = Report(options.out / "small_check.json")
    entries = [(task, model, options.set) for task, model in CONTESTANTS]
    entries += [(task, model, tuning) for task, model in CONTESTANTS[:2] for tuning in options.also]
    started = [start_contestant(*one, device, options.seconds) for one in entries if "steps" in parts]
    plan: list[tuple[str, Callable[..., Any], int]] = [
        ("pieces", checked_piece, len(piece_cases(device))),
        ("pieces", checked_short, len(SHORT)),
        ("pieces", checked_head, len(HEADS)),
        ("losses", losses, len(CONTESTANTS)),
        ("tuning", compile_tuning, len(tuning_cases(device))),
    ]
    asides = [
        start_aside(part, function, number, device)
        for part, function, count in plan
        for number in range(count if part in parts else 0)
    ]
    end = time.monotonic() + options.patience
    collect(asides, end, report)
    end_the_cold(started, end)
    take_turns(started, device, options.seconds, report)
    if "tuning" in parts:
        rows: list[dict[str, Any]] = report.results.setdefault("timed", [])
        timed_pieces(device, rows)
        report.write()
    for row in report.results.get("steps", []):
        if "longest" in row:
            print(row["task"], row["model"], row["mode"], *row["longest"][:15], sep="\n  ")
    return int("error" in json.dumps(report.results, default=str))


if __name__ == "__main__":
    sys.exit(main())
