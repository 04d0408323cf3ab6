"""`train(config)`: begin a run or go on with one, train it, say how it went."""

from __future__ import annotations

import dataclasses
import shlex
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.core.display import html_table
from regard.errors import BadValue
from regard.training import initial
from regard.training.assembly import Parts, arrange, build_task, complete, rebuild_model
from regard.training.config import Config, said
from regard.training.hardware import deterministic, prepare
from regard.training.loading import to_stderr
from regard.training.position import seed_everything
from regard.training.run_folder import changes, checkpoints, durable, metrics_file, selection
from regard.training.run_folder.checkpoints import Checkpoint
from regard.training.run_folder.folder import RunFolder
from regard.training.signals import Signals
from regard.training.trainer import Trainer


@dataclass(frozen=True)
class Result:
    """How a run went."""

    folder: Path
    steps: int  # taken in all, by every process that worked on the run
    metrics: dict[str, float]  # of the last validation
    best: dict[str, Any] | None  # step, metric and value of the best validation
    seconds: float
    steps_per_second: float
    stopped_by: str  # "steps", "budget", "patience", or the name of a signal: "SIGINT", "SIGTERM", …
    tokens: int = 0  # trained on, by every process that worked on the run

    @property
    def exit_code(self) -> int:
        """0, or 128 and the number of the signal that stopped the run."""
        return 128 + signal.Signals[self.stopped_by].value if self.stopped_by.startswith("SIG") else 0

    @property
    def resume_command(self) -> str:
        """What to type to go on."""
        return f"regard train --resume {shlex.quote(str(self.folder))}"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        facts = [("steps", f"{self.steps} ({self.steps_per_second:.3g}/s, {self.seconds:.1f} s, by {self.stopped_by})")]
        facts += [(f"validation {name}", f"{value:.6g}") for name, value in self.metrics.items()]
        if self.best is not None:
            facts.append((f"best {self.best['metric']}", f"{self.best['value']:.6g} at step {self.best['step']}"))
        return html_table(("run", str(self.folder)), facts)


def train(
    config: Config | Mapping[str, Any],
    *,
    resume: str | None = None,
    fast_dev_run: bool = False,
    quiet: bool = False,
    tell: Callable[[str], None] = to_stderr,
) -> Result:
    """Train as `config` says; a mapping holds settings by (dotted) name. What is not said comes from the task's recipe.

    resume: None begins a new run; "auto" goes on with the one in the run folder, if there is one; else the folder of a
        run or of one of its checkpoints.
    fast_dev_run: one batch of training and one of validation, in a temporary folder that is removed.
    quiet: no progress on stderr. `tell` hears what a user must know in any case (damaged checkpoints, taken weights).
    """
    values = said(config) if isinstance(config, Config) else dict(config)
    with ExitStack() as stack:
        if fast_dev_run:
            if resume is not None:
                raise BadValue("fast_dev_run: it begins a run and throws it away, so it cannot resume one.")
            values |= {
                "out": stack.enter_context(tempfile.TemporaryDirectory(prefix="regard-")),
                "name": "dev",
            }
            values |= {
                "steps": 1,
                "budget": None,
                "accumulate": 1,
                "eval_every": 1,
                "save_every": 1,
                "log_every": 1,
            }
        settings, run, chosen = arrange(values, resume)
        if fast_dev_run:
            settings = dataclasses.replace(settings, eval_limit=settings.batch_size)
        signals = stack.enter_context(Signals())
        stack.enter_context(deterministic(settings.deterministic))
        return _run(settings, run, chosen, signals, tell, quiet, stack)


def _run(
    config: Config,
    run: RunFolder,
    chosen: Path | None,
    signals: Signals,
    tell: Callable[[str], None],
    quiet: bool,
    stack: ExitStack,
) -> Result:
    going_on = run.exists
    hardware = prepare(config)
    leads = bool(hardware.accelerator.is_main_process)
    tell = tell if leads else lambda text: None  # the first process speaks for all
    seed_everything(config.seed)
    checkpoint: Checkpoint | None = None
    if going_on and leads:
        stack.enter_context(run.alone())
        checkpoint = _pick_up(run, chosen, tell)
    hardware.accelerator.wait_for_everyone()  # nobody reads before the folder is in order, or writes before all looked
    if going_on and not leads:
        checkpoint = selection.find(run, selection.LAST, tell).checkpoint
    task = build_task(config, checkpoint.state.get("task") if checkpoint else None)
    if checkpoint is not None:
        model = rebuild_model(config, task, checkpoint.weights, "resume")
    else:
        model = initial.begin(config, task, tell)
    if direction := task.direction():
        tell(f"{config.task}: {direction}.")
    # Only now is anything written: what cannot be built leaves no folder behind. The lock comes before the first file.
    if going_on and leads:
        _record_changes(config, run, 0 if checkpoint is None else checkpoint.step, tell)
    elif leads:
        stack.enter_context(run.alone())
        run.begin(config, str(hardware.device))
    trainer = Trainer(config, run, Parts(task, model), hardware, signals, checkpoint, tell, quiet)
    if checkpoint is None and not leads:
        seed_everything(config.seed + hardware.accelerator.process_index)  # each process drops out its own
    with trainer.company.intact(run.path, to_stderr):  # whichever process is left must say it
        reason = trainer.train()
    position = trainer.position
    best = None
    if position.best_step is not None:
        best = {"step": position.best_step, "metric": task.metric.name, "value": position.best}
    return Result(
        run.path, position.step, position.metrics, best, position.seconds, trainer.speed, reason, position.tokens
    )  # fmt: skip


def _record_changes(config: Config, run: RunFolder, step: int, tell: Callable[[str], None]) -> None:
    """Write down which settings differ from those the run had at this step, before a step is taken with them."""
    known = changes.read(run.path)
    kept = changes.until(
        known, step - 1
    )  # those at this very step are worked out anew, so that each stands there once
    now = [*kept, *changes.between(complete(changes.applied(run.begun(), kept)), config, step)]
    if now == known:
        return
    changes.write(run.path, now)
    for one in now:
        if one not in known:
            tell(f"resume: {one}; recorded in {run.path / changes.FILE}.")
    for one in known:
        if one not in now and not any(other.setting == one.setting for other in now if other not in known):
            tell(f"resume: {one} no longer applies, as the run goes on from step {step}.")


def _pick_up(run: RunFolder, chosen: Path | None, tell: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to go on from, the folder put in order around it."""
    with durable.reporting(run.checkpoints):
        run.checkpoints.mkdir(exist_ok=True)
        durable.restore(run.checkpoints)
    found = selection.find(run, selection.LAST if chosen is None else chosen.name, tell)
    checkpoint, aside = found.checkpoint, found.passed
    for path in aside:
        tell(f"{path.name} is kept as set-aside-{path.name}.")
    checkpoints.set_aside(run.checkpoints, aside)
    if checkpoint is None:
        tell(f"{run.path} has no checkpoint yet: starting at step 0.")
        metrics_file.cut(run.metrics, 0)
        return None
    redone = checkpoint.state["progress"].get("pending") is not None
    metrics_file.cut(
        run.metrics, checkpoint.step + (0 if redone else 1), checkpoint.state.get("metrics"), tell
    )
    tell(f"Going on from {checkpoint.name} in {run.path}.")
    return checkpoint
