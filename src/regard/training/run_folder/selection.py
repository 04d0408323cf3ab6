"""Which checkpoint of a run is meant: the one way in for every reader (resume, evaluate, predict, view, compare).

The newest whole checkpoint says which is the best. It is compared with the run's settings and metrics before anybody
uses it, so that what one reader refuses no other one shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.errors import BadValue, unknown_name
from regard.training.run_folder import checkpoints, metrics_file, trained_settings
from regard.training.run_folder.checkpoints import Checkpoint, Damaged
from regard.training.run_folder.folder import RunFolder

BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Found:
    """A whole checkpoint, or none, and the newer ones that are passed over for it."""

    checkpoint: Checkpoint | None
    passed: list[Path]


def find(run: RunFolder, which: str, tell: Callable[[str], None]) -> Found:
    """The checkpoint called "best" or "last", or of a name or a step. `tell` hears of what is damaged on the way."""
    there = checkpoints.found(run.checkpoints)
    if which in (BEST, LAST):
        newest, passed = checkpoints.load_newest(run.checkpoints, tell)
        found = Found(newest, passed)
        if which == BEST and newest is not None:
            found = Found(checkpoints.load_best(run.checkpoints, newest, tell), passed)
    else:
        names = [checkpoints.name_of(checkpoints.step_of(path)) for path in there]
        name = checkpoints.name_of(int(which)) if which.isdecimal() and len(which) < 12 else which
        if name not in names:
            raise unknown_name("checkpoint", which, [BEST, LAST, *names])
        place = names.index(name)
        newest = checkpoints.load(there[place])
        found = Found(newest, there[:place])
    if found.checkpoint is not None and newest is not None:
        trained_settings.check(run, found.checkpoint, tell)
        if why := metrics_file.changed(run.metrics, newest.state.get("metrics")):
            tell(why)
    return found


def one(run: RunFolder, which: str, tell: Callable[[str], None]) -> Checkpoint:
    """The same where there must be one."""
    if not checkpoints.found(run.checkpoints):
        raise BadValue(
            f"run: {run.path} has no checkpoint yet. Train it on: regard train --resume {run.path}"
        )
    checkpoint = find(run, which, tell).checkpoint
    if checkpoint is None:
        raise Damaged(f"{run.checkpoints}: there is no checkpoint that can be read.")
    return checkpoint
