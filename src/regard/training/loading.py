"""A run read back for use: its task, its model with the weights of one checkpoint, and which checkpoint that was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from regard import models
from regard.errors import BadValue, unknown_name
from regard.tasks.task import Task
from regard.training import changes, checkpoints
from regard.training.assembly import build_model, build_task, complete, newest_run, take_weights
from regard.training.changes import Change
from regard.training.checkpoints import Checkpoint, Damaged
from regard.training.config import Config
from regard.training.folder import RunFolder
from regard.training.hardware import choose_device
from regard.training.readers import Expected, paths

BEST, LAST = "best", "last"


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
    ] = ()  # of settings, on resumes before this checkpoint, that bear on its weights


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
    taken = _chosen(folder.checkpoints, checkpoint or BEST, tell)
    values = folder.settings(taken.step)
    own = paths(values.get("data") or [])
    if data is not None:
        values["data"] = list(_files(data))
    config = complete(values)
    task = build_task(config, taken.state.get("task"), whole=config.data != own)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, task)
    with torch.no_grad():
        take_weights(model, taken.weights, str(folder.checkpoints / taken.name))
    manifest = json.loads((folder.checkpoints / taken.name / checkpoints.MANIFEST).read_bytes())
    sha256 = manifest["files"]["model.safetensors"]["sha256"]
    # A change at the checkpoint's own step came after it.
    changed = tuple(one for one in changes.read(path) if one.step < taken.step and one.matters)
    return Loaded(path, taken.name, sha256, task, model.to(place).eval(), config, place, changed)


def _files(data: object) -> tuple[str, ...]:
    try:
        found: tuple[str, ...] = paths(data)
    except Expected as wanted:
        raise BadValue(f"data: expected {wanted}, got {data!r}. Name files, or leave --data out.") from None
    return found


def _chosen(folder: Path, asked: str, tell: Callable[[str], None]) -> Checkpoint:
    """A checkpoint that is whole; where the best or the last is damaged, the one before it."""
    there = checkpoints.found(folder)
    if not there:
        raise BadValue(
            f"run: {folder.parent} has no checkpoint yet. Train it on: regard train --resume {folder.parent}"
        )
    if asked == BEST:
        return checkpoints.load_for_use(folder, tell)
    if asked == LAST:
        newest, _ = checkpoints.load_newest(folder, tell)
        if newest is None:
            raise Damaged(f"{folder}: there is no checkpoint that can be read.")
        return newest
    names = [path.name for path in there]
    name = checkpoints.name_of(int(asked)) if asked.isdecimal() and len(asked) < 12 else asked
    if name not in names:
        raise unknown_name("checkpoint", asked, [BEST, LAST, *names])
    return checkpoints.load(folder / name)
