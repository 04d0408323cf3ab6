"""Start a new run or resume one: which settings, which folder, which checkpoint; and what the resume changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.training import config as settings
from regard_workbench.training.config import FIXED, Config
from regard_workbench.training.config.recipe import complete, model_for
from regard_workbench.training.run_folder import changes, checkpoints, durable, metrics_file, selection
from regard_workbench.training.run_folder.checkpoints import MANIFEST, Checkpoint, step_of
from regard_workbench.training.run_folder.folder import RunFolder, locate, newest_run, unused_name


def resolve(values: Mapping[str, Any], resume: str | None) -> tuple[Config, RunFolder, Path | None]:
    """The complete settings, the run folder, and the checkpoint to resume from if one was named.

    `resume`: None starts a new run; "auto" resumes if there is a run; else the folder of a run or of a checkpoint.
    """
    typed, mistakes = settings.read(values)
    settings.refuse(mistakes)
    typed = {name: value for name, value in typed.items() if value is not None}
    checkpoint: Path | None = None
    if resume is not None and resume != "auto":
        path = Path(resume)
        if (path / MANIFEST).is_file() and path.parent.name == "checkpoints":
            if path not in checkpoints.paths(path.parent):
                raise BadValue(f"resume: {path.name} is not named like a checkpoint. Rename it to step-NNNNNNNN.")
            checkpoint, path = path, path.parent.parent
        run = RunFolder(path)
        _check_location(typed, run)
        # A run that resumes from an earlier checkpoint has the settings of that time.
        stored = run.settings(None if checkpoint is None else step_of(checkpoint))
    else:
        where = locate(typed.get("out"), typed.get("name"), "") if _names_folder(typed) else None
        if resume == "auto" and where is None:
            where = newest_run(str(typed.get("task", "")))
        if where is None or not RunFolder(where).exists:
            config = complete(typed)
            name = unused_name(f"{config.task}-{config.model}")
            return config, RunFolder(where or locate(None, None, name)), None
        run = RunFolder(where)
        if resume is None:
            run.check_free()
        stored = run.settings()
    return _resumed_config(stored, typed, run), run, checkpoint


def _resumed_config(stored: dict[str, Any], given: Mapping[str, Any], run: RunFolder) -> Config:
    before = dataclasses.asdict(complete(stored))
    flat = settings.flat(before)
    if "model" in given:
        given = {**given, "model": model_for(given["model"], flat["task"])}
    mistakes = [
        f"{name}: {run.path} was started with {flat[name]!r} and cannot continue with {given[name]!r}. Start a new run."
        for name in FIXED
        if name in given and given[name] != flat[name]
    ]
    settings.refuse(mistakes)
    for chosen, replaced in (("steps", "budget"), ("budget", "steps")):
        if chosen in given:
            flat[replaced] = None
    changed = {name: value for name, value in given.items() if name not in changes.LOCATION}
    return complete({**flat, **changed})


def _check_location(given: Mapping[str, Any], run: RunFolder) -> None:
    """Raise if a resumed run is given another folder: it stays where it is."""
    if _names_folder(given) and run.exists:
        requested = locate(given.get("out"), given.get("name"), "")
        if requested.resolve() != run.path.resolve():
            raise BadValue(
                f"out: {run.path} is resumed where it is, so it cannot continue in {requested}. Leave it out, or copy "
                "the folder first and resume the copy."
            )


def _names_folder(given: Mapping[str, Any]) -> bool:
    return given.get("out") is not None or given.get("name") is not None


def load_checkpoint(run: RunFolder, chosen: Path | None, tell: Callable[[str], None]) -> Checkpoint | None:
    """Load the checkpoint to resume from, and clean up the run folder: later checkpoints, metrics and leftovers."""
    with durable.reporting(run.checkpoints):
        run.checkpoints.mkdir(exist_ok=True)
        durable.restore(run.checkpoints)
    selected = selection.find(run, selection.LAST if chosen is None else chosen.name, tell)
    checkpoint = selected.checkpoint
    for path in selected.skipped:
        tell(f"{path.name} is kept as set-aside-{path.name}.")
    checkpoints.set_aside(run.checkpoints, selected.skipped)
    if checkpoint is None:
        tell(f"{run.path} has no checkpoint yet: starting at step 0.")
        metrics_file.cut(run.metrics, 0)
        return None
    repeated = checkpoint.state["progress"].get("pending") is not None  # its line of metrics is written again
    metrics_file.cut(run.metrics, checkpoint.step + (0 if repeated else 1), checkpoint.state.get("metrics"), tell)
    tell(f"Resuming from {checkpoint.name} in {run.path}.")
    return checkpoint


def record_changes(config: Config, run: RunFolder, step: int, tell: Callable[[str], None]) -> None:
    """Record which settings differ from those the run had at this step, before any step is taken with them."""
    recorded = changes.read(run.path)
    kept = changes.until(recorded, step - 1)  # changes at this step are determined again, so that none appears twice
    current = [*kept, *changes.between(complete(changes.applied(run.initial_settings(), kept)), config, step)]
    if current == recorded:
        return
    changes.write(run.path, current)
    for change in current:
        if change not in recorded:
            tell(f"resume: {change}; recorded in {run.path / changes.FILE}.")
    for change in recorded:
        if change not in current and not any(
            replacement.setting == change.setting for replacement in current if replacement not in recorded
        ):
            tell(f"resume: {change} no longer applies, as the run continues from step {step}.")
