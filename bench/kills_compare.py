"""Kill `compare` and its workers at random moments, give the command again, and count what is wrong afterwards.

    python -m bench.kills_compare --kills 300
    python -m bench.kills_compare --seconds 360

Each comparison (two models, two seeds) is killed several times: one worker, the command itself, or all of its
processes at once, always with SIGKILL; then the command runs to its end. After every kill, each run that has an outcome
is measured again from its folder. At the end all outcomes, all lines of metrics and the table must be, bit for bit,
those of a comparison that nobody touched. Half of the time the next command starts while the last one's workers are
still saving. Processes are forks of this one, which has everything loaded. What only reads the runs is left out: the
cost of a step is not measured and the report not drawn.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.forked import Forked, lives
from regard_workbench import plugins
from regard_workbench.comparison import compare as module
from regard_workbench.comparison.compare import ComparisonPlan, compare
from regard_workbench.comparison.job import Job, Outcome
from regard_workbench.training import evaluate, load_run
from regard_workbench.training.run_folder import metrics_file

STRANGERS = str(Path(__file__).resolve().parents[1] / "tests" / "comparison" / "strangers.py")
SETTINGS = {"task": "toy", "steps": 24, "eval_every": 5, "save_every": 3, "log_every": 1, "device": "cpu"}
MODELS = ["toy-net", "toy-net(dim=5)"]
SEEDS = [0, 1]
CHAIN = 10  # kills of one comparison, at most
AT_ONCE = 2  # workers killed under one command, at most: the third death of a run is its failure, and rightly so
WRONG = ("consumers", "tracebacks", "mixed", "unfinished", "left behind")
CLOCK = ("seconds", "steps_per_second")


class Ground:
    """Where comparisons are made and killed; the first one is left alone."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.kills: collections.Counter[str] = collections.Counter()
        self.wrong: collections.Counter[str] = collections.Counter()
        self.comparisons = self.commands = 0
        self.orphans: list[int] = []  # workers of commands that were killed
        self.length = min(self._untouched(folder / name) for name in ("first", "untouched"))
        self.expected = facts(folder / "untouched")

    def _untouched(self, out: Path) -> float:
        """Make a comparison that nobody disturbs; the seconds it took. The very first reads modules from a disk."""
        began = time.monotonic()
        if self._start(out).wait():
            raise SystemExit("\n".join(log.read_text() for log in self.folder.rglob("log.txt")))
        return time.monotonic() - began

    def _start(self, out: Path) -> Forked:
        """The command, in a process of its own."""
        self.commands += 1
        with (self.folder / "log.txt").open("ab") as log:
            return Forked(lambda: _compare(out), stdin=None, stdout=log, stderr=log)

    def trial(self) -> None:
        """One comparison, killed several times and then let alone."""
        out = self.folder / f"out-{self.comparisons}"
        self.comparisons += 1
        for _ in range(self.random.randint(1, CHAIN)):
            if not self._disturbed(out):
                break
        if (code := self._start(out).wait()) != 0:
            self._note("unfinished", f"{out.name}: exit code {code}")
        elif (found := facts(out)) != self.expected:
            differs = [name for name in self.expected if found.get(name) != self.expected[name]]
            self._note("mixed", f"{out.name}: {', '.join(differs)}")
        self._see_the_end_of_orphans()
        self._read(out)
        for log in [self.folder / "log.txt", *out.glob("runs/*/log.txt")]:
            if b"Traceback" in log.read_bytes():
                self._note("tracebacks", str(log))
        (self.folder / "log.txt").write_bytes(b"")
        shutil.rmtree(out)

    def _disturbed(self, out: Path) -> bool:
        """Start the command and kill at random moments; whether it was the command that was killed."""
        command = self._start(out)
        deaths = 0
        while True:
            time.sleep(self.random.uniform(0, 0.35 * self.length))
            if command.poll() is not None:
                return False
            who = self.random.choice(["worker", "command", "all"])
            workers = [number for number in command.children() if _is_worker(number)]
            if who == "worker" and (not workers or deaths == AT_ONCE):
                continue
            chosen = [self.random.choice(workers)] if who == "worker" else []
            chosen += [command.pid] if who != "worker" else []
            chosen += workers if who == "all" else []
            for number in chosen:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(number, signal.SIGKILL)
            self.kills[who] += 1
            if who == "worker":
                deaths += 1
                continue
            command.wait()
            self.orphans += workers
            if self.random.random() < 0.5:
                self._see_the_end_of_orphans()
            self._read(out)
            return True

    def _see_the_end_of_orphans(self) -> None:
        limit = time.monotonic() + 90
        while self.orphans and time.monotonic() < limit:
            self.orphans = [number for number in self.orphans if lives(number)]
            time.sleep(0.02)
        if self.orphans:
            self._note("left behind", str(self.orphans))
            self.orphans = []

    def _read(self, out: Path) -> None:
        """Every run that says how it went must say what its checkpoint says."""
        for folder in out.glob("runs/*"):
            outcome = Outcome.load(folder)
            if outcome is None or outcome.error:
                continue
            try:
                task, model, config = load_run(folder, tell=lambda text: None)
                again = evaluate(task, model, batch_size=config.batch_size or 32, seed=config.seed) or {}
            except Exception as trouble:
                self._note("consumers", f"{folder}: {trouble!r}")
                continue
            if any(outcome.validation[name] != again[name] for name in ("loss", "accuracy")):
                self._note("consumers", f"{folder}: {outcome.validation} was published, {again} is measured")

    def _note(self, what: str, text: str) -> None:
        print(f"WRONG {what}: {text}", file=sys.stderr, flush=True)
        self.wrong[what] += 1


def facts(out: Path) -> dict[str, Any]:
    """What must be equal: each run's settings, outcome and metrics, and the table, without what a clock says."""
    found: dict[str, Any] = {}
    for folder in sorted(out.glob("runs/*")):
        outcome, job = Outcome.load(folder), Job.from_json((folder / "job.json").read_text())
        lines = metrics_file.read(folder / "metrics.jsonl")
        # The checksum of the metrics covers what a clock said.
        unlike = {"folder": "", "seconds": 0, "steps_per_second": 0, "versions": {}, "metrics": None}
        shown = None if outcome is None else {**vars(outcome), **unlike}
        found[folder.name] = json.dumps(
            [shown, job.settings, [{k: v for k, v in line.items() if k not in CLOCK} for line in lines]]
        )
    if (out / "results.json").exists():
        rows = json.loads((out / "results.json").read_bytes())
        found["table"] = [[row[name] for name in ("model", "seeds", "failed", "validation", "test")] for row in rows]
    return found


def _is_worker(number: int) -> bool:
    try:
        return b"supervisor.py" not in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


def _compare(out: Path) -> int:
    from regard_workbench.comparison import report
    from regard_workbench.comparison.engines import child

    # For the engine alone: what else starts processes starts them as ever.
    child.subprocess = SimpleNamespace(Popen=Forked, TimeoutExpired=subprocess.TimeoutExpired)  # type: ignore
    module.costs_of = lambda *_: {}
    report.write = lambda *_: None
    plan = ComparisonPlan(
        settings=SETTINGS, models=MODELS, seeds=SEEDS, out=out, workers=2, threads=1, use=(STRANGERS,)
    )
    return int(any(outcome.error for outcome in compare(plan).outcomes))


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was wrong, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.kills_compare")
    parser.add_argument("--kills", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where comparisons are made (default: a temporary folder)")
    options = parser.parse_args(arguments)
    plugins.load([STRANGERS])
    import torch

    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="regard-kills-", dir=options.folder) as folder:
        ground = Ground(Path(folder), options.seed)
        while ground.kills.total() < options.kills and time.monotonic() - began < options.seconds:
            ground.trial()
    counts = {
        "tried": ground.kills.total(),
        "killed": dict(ground.kills),
        "comparisons": ground.comparisons,
        "commands": ground.commands,
        "seconds": round(time.monotonic() - began),
        "wrong": {name: ground.wrong[name] for name in WRONG},
    }
    print(json.dumps(counts, indent=1))
    return int(ground.wrong.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
