"""A run read back for use: its task, its model with the weights of one checkpoint, and which checkpoint that was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from regard import models
from regard.errors import BadValue
from regard.tasks.task import Task
from regard.training.assembly import build_task, complete, newest_run, rebuild_model, take_weights
from regard.training.config import Config
from regard.training.config.readers import Expected, paths
from regard.training.hardware import choose_device
from regard.training.run_folder import changes, checkpoints, selection
from regard.training.run_folder.changes import Change
from regard.training.run_folder.folder import RunFolder


@dataclass(frozen=True)
class Loaded:
    """What a run learned, ready for use."""

    run: Path
    checkpoint: str
    sha256: str  # of the weights, as the checkpoint's manifest has it and loading has checked it
    task: Task
    model: models.Model
    config: Config
    device: torch.device
    changes: tuple[
        Change, ...
    ] = ()  # on resumes before this checkpoint, of settings that bear on its weights
    settings_sha256: str = (
        ""  # of the settings as the checkpoint keeps them; empty in one of an earlier version
    )


def to_stderr(text: str) -> None:
    """News that is no result."""
    print(text, file=sys.stderr, flush=True)


def load(
    run: str | Path,
    checkpoint: str | None = None,
    device: str | torch.device = "auto",
    data: object = None,
    tell: Callable[[str], None] = to_stderr,
) -> Loaded:
    """The run in a folder (or one checkpoint's folder), with its best weights unless another checkpoint is named.

    checkpoint: "best", "last", or the name or the step of one.
    data: files in place of the run's, as the setting `data` takes them; a file the run does not know is measured as a
        whole. `tell` hears of damaged checkpoints.
    """
    if "\0" in str(run):
        raise BadValue("run: a path cannot hold a NUL character.")
    path = Path(run)
    if path.parent.name == "checkpoints" and (path / checkpoints.MANIFEST).is_file():
        if checkpoint is not None:
            raise BadValue(f"checkpoint: the run is {path.name} already. Pass the folder of the run instead.")
        path, checkpoint = path.parent.parent, path.name
    folder = RunFolder(path)
    if not folder.exists:
        newest = newest_run("")
        hint = f"The newest is {newest}." if newest else "`regard train dates` makes one."
        raise BadValue(f"run: there is no run here: {str(run)!r} holds no config.yaml. {hint}")
    place = device if isinstance(device, torch.device) else choose_device(device)
    taken = selection.one(folder, checkpoint or selection.BEST, tell)
    where = str(folder.checkpoints / taken.name)
    values = folder.settings(taken.step)
    own = paths(values.get("data") or [])
    if data is not None:
        values["data"] = list(_files(data))
    config = complete(values)
    task = build_task(config, taken.state.get("task"), whole=config.data != own)
    with torch.random.fork_rng(devices=[]):
        model = rebuild_model(config, task, taken.weights, where)
    with torch.no_grad():
        take_weights(model, taken.weights, where)
    # A change at the checkpoint's own step came after it.
    changed = tuple(one for one in changes.read(path) if one.step < taken.step and one.matters)
    kept = str((taken.state.get("settings") or {}).get("sha256", ""))
    return Loaded(path, taken.name, taken.sha256, task, model.to(place).eval(), config, place, changed, kept)


def _files(data: object) -> tuple[str, ...]:
    try:
        found: tuple[str, ...] = paths(data)
    except Expected as wanted:
        raise BadValue(f"data: expected {wanted}, got {data!r}. Name files, or leave --data out.") from None
    return found
