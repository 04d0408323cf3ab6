"""Every count of docs/results.md, "Trust", by one command: what was tried, and how much of it went wrong.

    python -m bench.trust                       all of it: hours on two cores
    python -m bench.trust --only starts,flips   some of it
    python -m bench.trust --list                the names and the command behind each

Each row is a command that can be given by itself; it prints its counts as JSON and, on stderr, whatever was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NIGHTLY = ("-m", "nightly")


class Count(NamedTuple):
    """One row: what is tried, and the arguments of `python -m` that try it."""

    words: str
    command: tuple[str, ...]


def _tests(*arguments: str) -> tuple[str, ...]:
    return ("bench.counted", *arguments)


COUNTS = {
    "kills": Count("kills of a run at random moments", ("bench.kills", "--kills", "1000")),
    "calls": Count(
        "every file-system call of a run: killed, half written, unsynced lost, failing, full from there on",
        ("bench.kills", "--calls", "all"),
    ),
    "lies": Count("kills on a disk whose fsync lied", ("bench.kills", "--lies", "200")),
    "compare": Count("kills of a comparison", ("bench.kills_compare", "--kills", "500")),
    "torchrun": Count("kills under torchrun", _tests("tests/training/test_distributed.py", *NIGHTLY)),
    "ray": Count(
        "kills under Ray: a worker, the head, the node, the command, all",
        _tests("tests/comparison/test_ray.py", "tests/comparison/test_ray_lost.py", "-m", "nightly or not nightly"),
    ),
    "starts": Count("two starts on one folder", _tests("tests/training/test_lock.py", "-k", "two_runs")),
    "disks": Count("small, read-only and unwritable disks", _tests("tests/training/test_small_disks.py", *NIGHTLY)),
    "damage": Count("damaged files of a run", _tests("tests/training/test_damaged_runs.py", *NIGHTLY)),
    "states": Count("changed states of a checkpoint", _tests("tests/training/test_schema.py", *NIGHTLY)),
    "flips": Count("flipped bits of config.yaml", _tests("tests/training/test_checksums.py", *NIGHTLY)),
    "settings": Count("made-up settings files", _tests("tests/cli/test_settings_file.py", *NIGHTLY)),
    "tables": Count("made-up CSV, TSV and JSONL", _tests("tests/tasks/test_fuzzed_tables.py", *NIGHTLY)),
    "requests": Count("hostile requests", _tests("tests/viewer/test_fuzzed_requests.py", *NIGHTLY)),
    "folders": Count("hostile model folders", _tests("tests/viewer/test_fuzzed_files.py", *NIGHTLY, "-k", "folders")),
    "images": Count("hostile images", _tests("tests/viewer/test_fuzzed_files.py", *NIGHTLY, "-k", "images")),
    "page": Count("hostile text in a browser", _tests("tests/browser/test_page_safety.py")),
}


def run(name: str) -> dict[str, Any]:
    """Give one command; its counts, a count of 1 under `wrong` where it printed none."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *COUNTS[name].command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {"tried": 0, "wrong": 1}
    wrong = found["wrong"]
    total = sum(wrong.values()) if isinstance(wrong, dict) else wrong
    return {**found, "name": name, "wrong": total, "seconds": round(time.monotonic() - began)}


def row(found: dict[str, Any]) -> str:
    """A line of the table."""
    command = "python -m " + " ".join(COUNTS[found["name"]].command)
    skipped = f" ({found['skipped']} skipped)" if found.get("skipped") else ""
    words = COUNTS[found["name"]].words
    return f"| {words} | `{command}` | {found['tried']:,}{skipped} | {found['wrong']} | {found['seconds']} |"


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was wrong, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.trust")
    parser.add_argument("--only", default=",".join(COUNTS), help="names joined by commas")
    parser.add_argument("--list", action="store_true", help="print the names and commands, and run nothing")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in COUNTS]:
        parser.error(f"--only: unknown {', '.join(unknown)}; known: {', '.join(COUNTS)}")
    if options.list:
        print("\n".join(f"{name:9} python -m {' '.join(COUNTS[name].command)}" for name in names))
        return 0
    print("| what | command | tried | wrong | seconds |\n|---|---|---|---|---|", flush=True)
    wrong = 0
    for name in names:
        found = run(name)
        wrong += found["wrong"]
        print(row(found), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
