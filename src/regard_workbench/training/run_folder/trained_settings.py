"""The settings a checkpoint was trained with, compared with those in the run folder now.

`state.json` holds under `settings` the contents of `config.yaml` and `changes.json` when the checkpoint was written,
and the SHA-256 of both. A run whose settings differ from those of its weights is refused; the error names the setting.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regard_workbench.training.config import flat
from regard_workbench.training.run_folder import changes, checksum
from regard_workbench.training.run_folder.changes import LOCATION, Change
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.run_folder.folder import RunFolder

MOVABLE = ("data", "init_from")  # files may have been moved: another path is reported, not refused


def settings_of(run: RunFolder) -> dict[str, Any]:
    """The settings of a run, as a checkpoint holds them."""
    kept = {"begun": _plain(run.initial_settings()), "changes": _rows(changes.read(run.path))}
    return {**kept, "sha256": checksum.digest(kept)}


def check(run: RunFolder, checkpoint: Checkpoint, tell: Callable[[str], None]) -> None:
    """Raise `FileChanged` if the run's settings differ from those the checkpoint was trained with."""
    kept = checkpoint.state.get("settings")
    if kept is None:
        tell(f"{run.path}: {checksum.NO_CHECKSUM}: its settings and metrics are taken as they are.")
        return
    initial, known = kept.get("begun"), kept.get("changes")
    if not isinstance(initial, dict) or not isinstance(known, list):
        raise checksum.FileChanged(f"{checkpoint.name}: its settings cannot be read.")
    now = _plain(run.initial_settings())
    for name in {**initial, **now}:
        if (was := initial.get(name)) == (found := now.get(name)):
            continue
        if name in MOVABLE:
            tell(f"{name}: {run.path} was started with {was!r}, but config.yaml says {found!r} now.")
            continue
        raise checksum.FileChanged(
            f"{name}: {run.path / 'config.yaml'} says {found!r}, but {checkpoint.name} was trained with {was!r}. "
            f"Restore it. To change it: regard train --resume {run.path} --{name.replace('_', '-')} VALUE"
        )
    # Changes at the checkpoint's own step were made after it, and may differ.
    earlier = [row for row in _rows(changes.read(run.path)) if row["step"] < checkpoint.step]
    if earlier != [row for row in known if isinstance(row, dict) and row.get("step", 0) < checkpoint.step]:
        raise checksum.FileChanged(
            f"{run.path / changes.FILE} differs from what {checkpoint.name} was trained with. Restore it from a copy."
        )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(flat(settings), default=str))  # str: YAML may hold dates
    return {name: value for name, value in plain.items() if name not in LOCATION}


def _rows(known: Sequence[Change]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(json.dumps([dataclasses.asdict(one) for one in known]))
    return rows
