"""Speed of the three models of the user's table, and of a plain decoder: training steps per second of the loop.

    python benchmarks/table_speed.py [--device cuda] [--no-compile] [--seconds 3] [--patience 300] [--out FILE]

2 layers of 128, batch 32, 64 positions (and the 8 rows of `digits`), bf16 on a GPU. All contestants compile and warm up
side by side; then they are timed one after the other, while the others wait.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

from regard_workbench.comparison.step_cost import measure

PATIENCE = 900  # seconds a warm contestant waits for its turn
SIZE = "layers=2,dim=128"
MODELS = (f"static-transformer({SIZE})", f"dynamic-transformer({SIZE})", f"lstm-attention({SIZE})")
CONTESTANTS = (
    *(("digits(order=pixels)", model) for model in MODELS),
    *(("digits", model) for model in MODELS),
    ("language(context=64)", f"decoder({SIZE},num_heads=4)"),
)


def timed(settings: dict[str, Any], seconds: float, warm: Semaphore, turn: Semaphore, results: Any) -> None:
    """Measure one contestant: announce that it is warm, and wait for its turn."""

    def wait() -> None:
        warm.release()
        if not turn.acquire(timeout=PATIENCE):  # the parent was ended: do not wait for it for ever
            raise TimeoutError(f"no turn to measure within {PATIENCE} s")

    try:
        found: dict[str, Any] = {"steps_per_second": measure(settings, 1, seconds, wait).steps_per_second}
    except Exception as trouble:
        warm.release()
        found = {"error": f"{type(trouble).__name__}: {trouble}"}
    results.put(found)


def table(
    common: Mapping[str, Any], seconds: float, patience: float, tell: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """One row for each contestant, told as soon as it is measured; an error for those that are not warm in time."""
    made = multiprocessing.get_context("spawn")
    warm, started = made.Semaphore(0), []
    for task, model in CONTESTANTS:
        settings = {"task": task, "model": model, "batch_size": 32, **common}
        turn, results = made.Semaphore(0), made.Queue()
        child = made.Process(target=timed, args=(settings, seconds, warm, turn, results))
        child.start()
        started.append((settings, child, turn, results))
    end = time.monotonic() + patience
    for _ in started:
        if not warm.acquire(timeout=max(0.0, end - time.monotonic())):
            break
    rows = []
    for settings, child, turn, results in started:
        turn.release()
        try:
            found = results.get(timeout=4 * seconds + 10)
        except queue.Empty:
            found = {"error": f"not warm within {patience:g} s"}
        child.kill()  # SIGTERM would be taken as the wish to save the run
        rows.append(settings | found)
        tell(rows[-1])
    return rows


def show(row: dict[str, Any]) -> None:
    """Print one row."""
    speed = f"{row['steps_per_second']:,.0f} steps/s" if "error" not in row else row["error"]
    print(f"{row['task']:22} {row['model']:40} {speed}", flush=True)


def main() -> int:
    """Print the table; 1 if a contestant failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of one timing")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for all to compile and warm up")
    parser.add_argument("--out", type=Path, help="write the rows to this file as JSON")
    options = parser.parse_args()
    common: dict[str, Any] = {"device": options.device, "compile": not options.no_compile}
    if options.device.startswith("cuda"):
        common["precision"] = "bf16-mixed"
    rows = table(common, options.seconds, options.patience, show)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
