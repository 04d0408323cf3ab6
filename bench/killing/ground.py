"""Where trials take place: the run nobody touched, and processes that are forked for each part of a trial."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.killing import disk, judging, trial
from bench.killing.judging import Reference

PATIENCE = 300  # seconds until a part of a trial counts as hanging
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["bench.killing.warm"])


class Ground:
    """A folder in which runs are killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = folder / "text.txt"
        self.text.write_text(trial.TEXT)
        untouched = folder / "untouched"
        untouched.mkdir()
        started = time.monotonic()
        assert self.part(trial.work, str(untouched), str(self.text), 0, "kill") == 0, self.words
        self.seconds = time.monotonic() - started
        self.calls = untouched.with_suffix(".calls").read_text().splitlines()
        assert self.part(_answers, str(folder), str(self.text)) == 0, self.words
        answers = json.loads((folder / "answers.json").read_text())
        steps = {int(step): found for step, found in answers["steps"].items()}
        self.reference = Reference(untouched / "runs" / "one", steps, answers["outcome"])

    @property
    def words(self) -> str:
        """What the last part of a trial said."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def start(self, call: Callable[..., Any], *arguments: Any) -> multiprocessing.process.BaseProcess:
        """Begin a part of a trial."""
        log = str(self.folder / "log.txt")
        process = _context.Process(target=trial.quietly, args=(log, call, *arguments))
        process.start()
        return process

    def part(self, call: Callable[..., Any], *arguments: Any) -> int:
        """Do a part of a trial, and return the exit code of its process: minus the number of what killed it."""
        process = self.start(call, *arguments)
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
            return 124
        return process.exitcode

    def fresh(self) -> Path:
        """An empty place for a trial."""
        base = self.folder / "trial"
        for left in self.folder.glob("trial*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        base.mkdir()
        return base

    def at_call(self, at: int, how: str) -> list[str]:
        """Strike in one call of a run that begins; what is wrong afterwards."""
        base = self.fresh()
        code = self.part(trial.work, str(base), str(self.text), at, how)
        if how in trial.SURVIVED and (code not in (0, 1, 2) or "Traceback" in self.words):
            return [f"the run ended with {code}: {self.words[-300:]}"]
        if how not in trial.SURVIVED and code != -signal.SIGKILL:
            return [f"the run ended with {code}: {self.words[-300:]}"]
        trial.after_power_cut(base)
        return self.judged(base)

    def lied_to(self, at: int, seed: int) -> list[str]:
        """Kill in one call, on a disk whose fsync lied: an answer must be right, and need not come."""
        base = self.fresh()
        self.part(trial.work, str(base), str(self.text), at, "kill")
        disk.spoil(base, seed)
        return self.judged(base, strict=False)

    def at_moments(self, own: random.Random, kills: int) -> list[str]:
        """Kill at random moments, each run going on from the one before; all readers are asked after each."""
        base = self.fresh()
        wrong: list[str] = []
        for _ in range(kills):
            process = self.start(trial.work, str(base), str(self.text), 0, "kill")
            process.join(own.uniform(0, self.seconds))
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            process.join()
            if process.exitcode not in (0, -signal.SIGKILL):
                wrong.append(f"the run ended with {process.exitcode}: {self.words[-300:]}")
            aside = self.folder / "trial-left"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(base, aside)
            wrong += self.judged(aside)
        return wrong

    def judged(self, base: Path, strict: bool = True) -> list[str]:
        """Ask every reader, let the run go on, and judge."""
        newest = judging.newest_whole(base / "runs" / "one")
        code = self.part(trial.ask, str(base), str(self.text))
        if code != 0:
            return [f"asking ended with {code}: {self.words[-500:]}"]
        found = json.loads(Path(f"{base}.json").read_text())
        return judging.trial(found, base, newest, self.reference, strict)


def _answers(folder: str, text: str) -> None:
    """What each reader says of each checkpoint of a run that keeps them all; and the outcome of the untouched run."""
    from regard_workbench.comparison.job import Outcome
    from regard_workbench.training import train
    from regard_workbench.training.run_folder import checkpoints

    run = Path(folder) / "all"
    train(trial.settings(Path(text), out=str(run), keep="all"), quiet=True)
    steps = {}
    for path in checkpoints.paths(run / "checkpoints"):
        said = trial.readers(path)
        steps[checkpoints.step_of(path)] = {name: one["answer"] for name, one in said.items()}
    outcome = Outcome.load(Path(folder) / "untouched" / "runs" / "one")
    assert outcome is not None
    facts = {
        "test": outcome.test,
        "validation": outcome.validation,
        "checkpoint": outcome.checkpoint,
        "sha256": outcome.checkpoint_sha256,
    }
    (Path(folder) / "answers.json").write_text(json.dumps({"steps": steps, "outcome": facts}))
