"""Load a trained run for use: its task, and its model with the weights of one checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.errors import BadValue
from regard_workbench import models
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.build import build_task, load_weights, rebuild_model
from regard_workbench.training.config import Config
from regard_workbench.training.config.readers import Expected, paths
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.hardware import choose_device
from regard_workbench.training.run_folder import changes, checkpoints, selection
from regard_workbench.training.run_folder.changes import Change
from regard_workbench.training.run_folder.folder import RunFolder, newest_run
from regard_workbench.training.signals import to_stderr


@dataclass(frozen=True)
class Loaded:
    """A trained run, ready for use."""

    run: Path
    checkpoint: str
    sha256: str  # of the weights file, as in the checkpoint's manifest, verified
    task: Task
    model: models.Model
    config: Config
    device: torch.device
    changes: tuple[Change, ...] = ()  # made on resumes before this checkpoint, if the weights may depend on them
    settings_sha256: str = ""  # of the settings in the checkpoint; empty for one of an earlier version


def load(
    run: str | Path,
    checkpoint: str | None = None,
    device: str | torch.device = "auto",
    data: object = None,
    bad_files: str | None = None,
    tell: Callable[[str], None] = to_stderr,
) -> Loaded:
    """Load the run in a folder (or in the folder of one checkpoint), by default with its best weights.

    checkpoint: "best", "last", or the name or step of one.
    data: files instead of the run's own, as in the setting `data`; a file that the run was not trained on is evaluated
        as a whole. `tell` gets messages about damaged checkpoints.
    bad_files: what to do about a picture that cannot be read (stop, skip), instead of the run's own choice.
    """
    if "\0" in str(run):
        raise BadValue("run: a path cannot hold a NUL character.")
    path = Path(run)
    if path.parent.name == "checkpoints" and (path / checkpoints.MANIFEST).is_file():
        if checkpoint is not None:
            raise BadValue(f"checkpoint: run names the checkpoint {path.name} already. Pass the run folder instead.")
        path, checkpoint = path.parent.parent, path.name
    folder = RunFolder(path)
    if not folder.exists:
        newest = newest_run("")
        hint = f"The newest is {newest}." if newest else "`regard train dates` makes one."
        raise BadValue(f"run: there is no run here: {str(run)!r} holds no config.yaml. {hint}")
    device = device if isinstance(device, torch.device) else choose_device(device)
    selected = selection.require(folder, checkpoint or selection.BEST, tell)
    where = str(folder.checkpoints / selected.name)
    values = folder.settings(selected.step)
    trained_on = paths(values.get("data") or [])
    if data is not None:
        values["data"] = list(_files(data))
    if bad_files is not None:
        # Loaded late: it brings the library that reads pictures.
        from regard_workbench.tasks.formats.bad_files import task_with

        values["task"] = task_with(values["task"], bad_files)
    config = complete(values)
    task = build_task(config, selected.state.get("task"), whole=config.data != trained_on)
    with torch.random.fork_rng(devices=[]):
        model = rebuild_model(config, task, selected.weights, where)
    with torch.no_grad():
        load_weights(model, selected.weights, where)
    # Changes at the checkpoint's own step were made after it.
    changed = tuple(change for change in changes.read(path) if change.step < selected.step and change.matters)
    sha256 = str((selected.state.get("settings") or {}).get("sha256", ""))
    return Loaded(path, selected.name, selected.sha256, task, model.to(device).eval(), config, device, changed, sha256)


def _files(data: object) -> tuple[str, ...]:
    try:
        files: tuple[str, ...] = paths(data)
    except Expected as wanted:
        raise BadValue(f"data: expected {wanted}, got {data!r}. Name files, or leave --data out.") from None
    return files


def load_run(
    folder: str | Path,
    *,
    data: tuple[str, ...] | None = None,
    device: str | torch.device = "cpu",
    tell: Callable[[str], None] = to_stderr,
) -> tuple[Task, models.Model, Config]:
    """The task, the model with its best weights, and the settings of a run; `data` replaces the run's files.

    `folder` may also be that of one checkpoint.
    """
    loaded = load(folder, device=device, data=data, tell=tell)
    return loaded.task, loaded.model, loaded.config
