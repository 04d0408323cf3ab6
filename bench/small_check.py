"""Small models in few kernels: do they learn the same as without, and how fast do training steps get?

    python -m bench.small_check [--device cuda] [--seconds 1] [--patience 60] [--out FOLDER] [--only losses,steps]

- losses: short trainings with the kernels and without, dropout off; and with one step or several in a graph, which must
  be the same numbers. (The kernels against float64: `tests/triton/test_fused_*.py`.)
- steps: steps per second of the loop with one step and with several in a graph; device time and kernels of a step;
  where the host's time goes. `lstm-attention`, whose groups have crashed, is tried in groups at the very end.

All contestants compile and warm up side by side while losses are compared; then they are timed one after the other. Who
is not warm by then is ended, so that the GPU is quiet. What fails prints its traceback, and the rest goes on. The file
of results is written anew after each answer.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.small_checking.losses import losses
from bench.small_checking.steps import contestant
from bench.small_checking.training import CONTESTANTS

SPAWN = multiprocessing.get_context("spawn")


class Report:
    """Answers, printed as they come and written to a file after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, list[dict[str, Any]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, part: str, answer: dict[str, Any]) -> None:
        """Add one answer of a part."""
        self.answers.setdefault(part, []).append(answer)
        self.path.write_text(json.dumps(self.answers, indent=1, default=str) + "\n", encoding="utf-8")
        shown = {name: value for name, value in answer.items() if name != "longest"}
        print(part, answer.get("error", shown), flush=True)


class Contestant(NamedTuple):
    """A process that trains: it tells when it is `warm`, and waits for its `turn` before each timing."""

    task: str
    model: str
    process: Any
    warm: Any
    turn: Any
    answers: Any


def start_losses(number: int, device: str) -> tuple[Any, Any]:
    """Let a process of its own compare losses; that process, and the queue with its answer."""
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=answer_losses, args=(number, device, answers), daemon=True)
    process.start()
    return process, answers


def answer_losses(number: int, device: str, answers: Any) -> None:
    """In a process of its own: send the losses of a contestant, or the traceback."""
    torch.set_num_threads(1)
    try:
        answers.put(losses(number, device))
    except Exception:
        answers.put({"number": number, "error": traceback.format_exc()})


def start_contestant(task: str, model: str, device: str, seconds: float) -> Contestant:
    """Let a training warm up."""
    warm, turn, answers = SPAWN.Semaphore(0), SPAWN.Semaphore(0), SPAWN.Queue()
    arguments = (task, model, device, seconds, warm, turn, answers)
    process = SPAWN.Process(target=contestant, args=arguments, daemon=True)
    process.start()
    return Contestant(task, model, process, warm, turn, answers)


def take_turns(started: list[Contestant], device: str, seconds: float, report: Report) -> None:
    """Time the contestants one after the other, then end them."""
    # Groups after all single steps, and those that have crashed last: what comes first is then certain.
    modes = ("single", "grouped") if device == "cuda" else ("single",)
    turns = [(mode, one) for mode in modes for one in started]
    turns.sort(key=lambda pair: pair[0] == "grouped" and "lstm" in pair[1].model)
    for mode, one in turns:
        one.turn.release()
        try:
            answer = one.answers.get(timeout=4 * seconds + (20 if one.process.is_alive() else 0.1))
        except queue.Empty:
            answer = {"task": one.task, "model": one.model, "mode": mode, "error": "not warm or not done in time"}
            one.process.kill()
        report.add("steps", answer)
    for one in started:
        one.process.kill()


def main() -> int:
    """Run both parts; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of one timing")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for all to warm up")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", default="losses,steps", help="parts to run, separated by commas")
    options = parser.parse_args()
    device, parts = options.device, options.only.split(",")
    report = Report(options.out / "small_check.json")
    end = time.monotonic() + options.patience
    started = [start_contestant(*one, device, options.seconds) for one in CONTESTANTS if "steps" in parts]
    compared = [start_losses(number, device) for number in range(len(CONTESTANTS)) if "losses" in parts]
    for process, answers in compared:
        try:
            report.add("losses", answers.get(timeout=max(0.1, end - time.monotonic())))
        except queue.Empty:
            report.add("losses", {"error": "losses: not done in time"})
        process.kill()
    for one in started:
        if not one.warm.acquire(timeout=max(0.0, end - time.monotonic())):
            one.process.kill()
    take_turns(started, device, options.seconds, report)
    for row in report.answers.get("steps", []):
        if "longest" in row:
            print(row["task"], row["model"], row["mode"], *row["longest"][:15], sep="\n  ")
    return int("error" in json.dumps(report.answers, default=str))


if __name__ == "__main__":
    sys.exit(main())
