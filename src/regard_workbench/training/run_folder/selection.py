"""Select a checkpoint of a run. Every reader (resume, evaluate, predict, view, compare) goes through here.

The newest complete checkpoint records which one is the best. A checkpoint is compared with the run's settings and
metrics before it is used, so that no reader accepts what another one refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.errors import BadValue, unknown_name
from regard_workbench.training.run_folder import changes, checkpoints, metrics_file
from regard_workbench.training.run_folder.checkpoints import Checkpoint, Damaged
from regard_workbench.training.run_folder.folder import RunFolder

BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Selection:
    """A complete checkpoint, or None, and the newer ones that are skipped."""

    checkpoint: Checkpoint | None
    skipped: list[Path]


def find(run: RunFolder, which: str, tell: Callable[[str], None]) -> Selection:
    """Select the "best" or "last" checkpoint, or one by name or step. Damaged checkpoints are reported to `tell`."""
    paths = checkpoints.paths(run.checkpoints)
    if which in (BEST, LAST):
        newest, skipped = checkpoints.load_newest(run.checkpoints, tell)
        selection = Selection(newest, skipped)
        if which == BEST and newest is not None:
            selection = Selection(checkpoints.load_best(run.checkpoints, newest, tell), skipped)
    else:
        names = [checkpoints.name_of(checkpoints.step_of(path)) for path in paths]
        name = checkpoints.name_of(int(which)) if which.isdecimal() and len(which) < 12 else which
        if name not in names:
            raise unknown_name("checkpoint", which, [BEST, LAST, *names])
        number = names.index(name)
        newest = checkpoints.load(paths[number])
        selection = Selection(newest, paths[:number])
    if selection.checkpoint is not None and newest is not None:
        changes.check_settings(run, selection.checkpoint, tell)
        if why := metrics_file.changed(run.metrics, newest.state.get("metrics")):
            tell(why)
    return selection


def require(run: RunFolder, which: str, tell: Callable[[str], None]) -> Checkpoint:
    """Select a checkpoint; raise if there is none."""
    if not checkpoints.paths(run.checkpoints):
        raise BadValue(f"run: {run.path} has no checkpoint yet. Continue training: regard train --resume {run.path}")
    checkpoint = find(run, which, tell).checkpoint
    if checkpoint is None:
        raise Damaged(f"{run.checkpoints}: no checkpoint can be read.")
    return checkpoint
