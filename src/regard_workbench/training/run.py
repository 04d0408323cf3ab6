"""`train(config)`: start or resume a run, train it, and return its result."""

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

from regard.errors import BadValue
from regard.support.display import html_table
from regard_workbench.training.build import Parts, build_new_model, build_task, rebuild_model
from regard_workbench.training.config import Config, non_defaults
from regard_workbench.training.hardware import deterministic, prepare
from regard_workbench.training.loop import Trainer
from regard_workbench.training.resume import load_checkpoint, record_changes, resolve
from regard_workbench.training.run_folder import selection
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.signals import Signals, to_stderr
from regard_workbench.training.state import seed_everything


@dataclass(frozen=True)
class Result:
    """The result of a training run."""

    folder: Path
    steps: int  # since the run was started, over all resumes
    metrics: dict[str, float]  # of the last validation
    best: dict[str, Any] | None  # step, metric and value of the best validation
    seconds: float
    steps_per_second: float
    stopped_by: str  # "steps", "budget", "patience", or the name of a signal: "SIGINT", "SIGTERM", …
    tokens: int = 0  # trained on since the run was started, over all resumes

    @property
    def exit_code(self) -> int:
        """0, or 128 plus the number of the signal that stopped the run."""
        return 128 + signal.Signals[self.stopped_by].value if self.stopped_by.startswith("SIG") else 0

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
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
    """Train as `config` says; a mapping holds settings by (dotted) name. The task's recipe fills in missing settings.

    resume: None starts a new run; "auto" resumes the one in the run folder, if there is one; else the folder of a run
        or of one of its checkpoints.
    fast_dev_run: one batch of training and one of validation, in a temporary folder that is removed.
    quiet: show no progress on stderr. `tell` still gets messages such as damaged checkpoints and loaded weights.
    """
    values = non_defaults(config) if isinstance(config, Config) else dict(config)
    with ExitStack() as stack:
        if fast_dev_run:
            if resume is not None:
                raise BadValue("fast_dev_run: it starts a run and deletes it, so it cannot resume one.")
            values |= {"out": stack.enter_context(tempfile.TemporaryDirectory(prefix="regard-")), "name": "dev"}
            values |= {"steps": 1, "budget": None, "accumulate": 1, "eval_every": 1, "save_every": 1, "log_every": 1}
        settings, run, chosen = resolve(values, resume)
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
    resuming = run.exists
    hardware = prepare(config)
    is_main = bool(hardware.accelerator.is_main_process)
    tell = tell if is_main else lambda text: None
    seed_everything(config.seed)
    checkpoint: Checkpoint | None = None
    if resuming and is_main:
        stack.enter_context(run.locked())
        checkpoint = load_checkpoint(run, chosen, tell)
    # The others read after the main process has cleaned up the folder, and before it writes.
    hardware.accelerator.wait_for_everyone()
    if resuming and not is_main:
        checkpoint = selection.find(run, selection.LAST, tell).checkpoint
    task = build_task(config, checkpoint.state.get("task") if checkpoint else None)
    if checkpoint is not None:
        model = rebuild_model(config, task, checkpoint.weights, "resume")
    else:
        model = build_new_model(config, task, tell)
    if direction := task.direction():
        tell(f"{config.task}: {direction}.")
    # Nothing is written before this line, so that a run that cannot be built leaves no folder. The lock comes first.
    if resuming and is_main:
        record_changes(config, run, 0 if checkpoint is None else checkpoint.step, tell)
    elif is_main:
        stack.enter_context(run.locked())
        run.create(config, str(hardware.device))
    trainer = Trainer(config, run, Parts(task, model), hardware, signals, checkpoint, tell, quiet)
    if checkpoint is None and not is_main:
        seed_everything(config.seed + hardware.accelerator.process_index)  # so that each process has its own dropout
    with trainer.processes.report_loss(run.path, to_stderr):  # any process that is left must report it
        reason = trainer.train()
    position = trainer.position
    best = None
    if position.best_step is not None:
        best = {"step": position.best_step, "metric": task.metric.name, "value": position.best}
    return Result(
        run.path, position.step, position.metrics, best, position.seconds, trainer.speed, reason, position.tokens
    )
