"""One run of a small language model, killed; then every reader is asked, and the run goes on to its end.

A trial has a folder of its own: `base/run` is the run, `base.json` what came out. All of it happens in processes that
are forked for it, so that a kill is a kill.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.killing import disk
from bench.killing.disk import Disk

MODEL = "decoder(layers=1,dim=8,num_heads=2,dropout=0.1)"
STEPS, SEED = 7, 6
SETTINGS: dict[str, Any] = {
    "task": "language",
    "model": MODEL,
    "steps": STEPS,
    "batch_size": 2,
    "accumulate": 2,
    "eval_every": 2,
    "eval_limit": 3,
    "save_every": 3,
    "log_every": 1,
    "device": "cpu",
    "seed": SEED,
    "optim.lr": 1.0,
    "optim.warmup": 0,
    "optim.schedule": "constant",  # validations rise and fall: the last is the best
}
TEXT = "Once upon a time there was a little girl named Lily who loved to play in the park. " * 12
PROMPT = "Once"
HOW = ("kill", "half", "drop", "error", "full")  # what happens in the chosen call
SURVIVED = ("error", "full")  # the run can say what is wrong


def settings(text: Path, **changes: Any) -> dict[str, Any]:
    """The settings of every run here."""
    return {**SETTINGS, "data": [str(text)], **changes}


def work(base: str, text: str, at: int, how: str) -> int:
    """Train and measure as a comparison does, on a disk that strikes in call `at`; the number of calls if not."""
    from regard_workbench.comparison.job import Contestant, Job
    from regard_workbench.comparison.worker import perform

    place = Path(base)
    strike = {"kill": disk.kill, "half": disk.kill, "drop": lambda: _drop(hurt, place), "error": _fail, "full": _fail}[
        how
    ]
    hurt = Disk(place, at, strike, half=how == "half", full=how == "full")
    run = place / "runs" / "one"
    values = settings(Path(text))
    hurt.install()
    if how in SURVIVED:
        return _main(["train", "--resume", "auto", "--out", str(run), *_flags(values)])[0]
    perform(Job(Contestant(MODEL), SEED, values, str(run)))
    hurt.at = 0
    count, log = hurt.calls, hurt.log
    place.with_suffix(".calls").write_text("\n".join(log))
    return count


def _fail() -> None:
    raise OSError(5, "Input/output error")


def _drop(hurt: Disk, place: Path) -> None:
    hurt.at = 0
    for name, call in hurt.real.items():
        setattr(os, name, call)
    hurt.image.write(place.with_name(f"{place.name}-after"))
    disk.kill()


def after_power_cut(base: Path) -> None:
    """Put what the disk would hold in the place of what the kill left."""
    left = base.with_name(f"{base.name}-after")
    if left.exists():
        shutil.rmtree(base)
        os.rename(left, base)


def _flags(values: dict[str, Any]) -> list[str]:
    words = [str(values["task"])]
    for name, value in values.items():
        if name != "task":
            shown = ",".join(value) if isinstance(value, list) else str(value)
            words += ["--" + name.replace("_", "-"), shown]
    return words


def _main(words: list[str]) -> tuple[int, str, str]:
    """The command line in this process: exit code, stdout, stderr."""
    from regard_workbench.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 99
        except BaseException:
            traceback.print_exc(file=err)
            code = 98
    return code, out.getvalue(), err.getvalue()


def readers(run: Path) -> dict[str, Any]:
    """What each reader says of a run: the checkpoint it took, and its answer; or its one line of refusal."""
    page = run.with_name(f"{run.name}.html")
    asked: dict[str, tuple[list[str], Callable[[str], Any]]] = {
        "evaluate": (["evaluate", str(run), "--json"], _evaluated),
        "predict": (["predict", str(run), "--text", PROMPT, "--max-length", "12", "--json"], _predicted),
        "view": (["view", str(run), "--text", PROMPT, "--export", str(page), "--json"], _viewed),
    }
    found: dict[str, Any] = {}
    for name, (words, answer) in asked.items():
        code, out, err = _main(words)
        found[name] = {"code": code, "err": err, "answer": answer(out) if code == 0 else None}
    page.unlink(missing_ok=True)
    return found


def _evaluated(out: str) -> Any:
    found = json.loads(out)
    return [found["signature"]["checkpoint"], {row["metric"]: row["value"] for row in found["metrics"]}]


def _predicted(out: str) -> Any:
    return json.loads(out)[0]["whole"]


def _viewed(out: str) -> Any:
    found = json.loads(out)
    return [found["variants"], found["answers"]]


def ask(base: str, text: str) -> None:
    """Ask every reader, then let the run go on: as `train --resume` in a copy, and as the comparison does it."""
    from regard_workbench.comparison.job import Contestant, Job
    from regard_workbench.comparison.worker import perform

    run = Path(base) / "runs" / "one"
    values = settings(Path(text))
    found: dict[str, Any] = {"before": readers(run)}
    copy = Path(base) / "copy"
    if run.exists():
        shutil.copytree(run, copy)
    code, _, err = _main(["train", "--resume", "auto", "--out", str(copy), *_flags(values)])
    found["resume"] = {"code": code, "err": err}
    with contextlib.redirect_stderr(io.StringIO()) as words:
        outcome = perform(Job(Contestant(MODEL), SEED, values, str(run)))
    found["compare"] = {
        "error": outcome.error,
        "test": outcome.test,
        "validation": outcome.validation,
        "err": words.getvalue(),
        "checkpoint": outcome.checkpoint,
        "sha256": outcome.checkpoint_sha256,
    }
    found["after"] = readers(run)
    Path(f"{base}.json").write_text(json.dumps(found))


def quietly(log: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Run a part of a trial in a forked process, its words in a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    import torch

    torch.set_num_threads(1)
    code = 98
    try:
        found = call(*arguments)
        code = found if call is work and found in (0, 1, 2) else 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)
