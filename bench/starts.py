"""Start two runs in one folder at the same moment, again and again, and count how often their files are mixed.

    python -m bench.starts --pairs 80

One of the two must win: its settings, its weights and its metrics are those of a run that was alone, bit for bit. The
other is refused in one line that says who holds the folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.training import toy

from bench.forked import Forked
from regard_workbench.cli.main import main as command
from regard_workbench.training.run_folder import checkpoints, metrics_file

SEEDS = (1, 2)
AHEAD = 0.05  # seconds from the fork to the moment of both starts
CLOCK = ("seconds", "steps_per_second")


def start(out: Path, seed: int, at: float, log: Path) -> Forked:
    """A run in a process of its own, which begins at a moment."""
    words = ["train", "toy", "--steps", "6", "--save-every", "2", "--log-every", "1", "--device", "cpu"]

    def work() -> int:
        while time.monotonic() < at:
            pass
        return command([*words, "--seed", str(seed), "--out", str(out)])

    with log.open("wb") as file:
        return Forked(work, stdin=None, stdout=file, stderr=file)


def facts(run: Path) -> list[Any]:
    """What must be equal in two equal runs."""
    tensors, progress = toy.weights(run)
    kept = checkpoints.load(checkpoints.paths(run / "checkpoints")[0]).state["settings"]
    rows = [{k: v for k, v in row.items() if k not in CLOCK} for row in metrics_file.read(run / "metrics.jsonl")]
    return [{name: tensor.tolist() for name, tensor in tensors.items()}, progress, kept, rows]


def judged(out: Path, codes: list[int], said: list[str], alone: dict[int, list[Any]]) -> str:
    """What is wrong with one pair; nothing where one run won and the other was told so."""
    if sorted(codes) != [0, 2]:
        return f"exit codes {codes}: {' / '.join(said)[-300:]}"
    winner = codes.index(0)
    loser = said[1 - winner].strip()
    if "\n" in loser or not ("another process is at work" in loser or "already holds a run" in loser):
        return f"the loser was told: {loser[-300:]}"
    return "" if facts(out) == alone[SEEDS[winner]] else "mixed"


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was wrong, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.starts")
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--folder", help="where runs are made (default: a temporary folder)")
    options = parser.parse_args(arguments)
    toy.register()
    import torch

    torch.set_num_threads(1)
    wrong: list[str] = []
    won: collections.Counter[int] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="regard-starts-", dir=options.folder) as name:
        folder = Path(name)
        logs = [folder / f"{seed}.txt" for seed in SEEDS]
        alone = {}
        for seed, log in zip(SEEDS, logs, strict=True):
            assert start(folder / f"alone-{seed}", seed, 0, log).wait() == 0, log.read_text()
            alone[seed] = facts(folder / f"alone-{seed}")
        for _ in range(options.pairs):
            out, at = folder / "run", time.monotonic() + AHEAD
            shutil.rmtree(out, ignore_errors=True)
            pair = [start(out, seed, at, log) for seed, log in zip(SEEDS, logs, strict=True)]
            codes = [one.wait() for one in pair]
            words = judged(out, codes, [log.read_text() for log in logs], alone)
            if words:
                print(f"WRONG {words}", file=sys.stderr, flush=True)
                wrong.append(words)
            else:
                won[SEEDS[codes.index(0)]] += 1
    print(json.dumps({"tried": options.pairs, "won": dict(won), "wrong": len(wrong)}, indent=1))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
