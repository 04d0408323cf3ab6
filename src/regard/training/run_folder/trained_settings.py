"""The settings of a run as its checkpoints keep them: what they were trained with, whatever the files say later.

`state.json` holds under `settings` what `config.yaml` and `changes.json` said when the checkpoint was written, and the
SHA-256 of both. A reader compares: a run whose settings are not those of its weights is refused, the setting named.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regard.training.config import flat
from regard.training.run_folder import changes, checksum
from regard.training.run_folder.changes import PLACE, Change
from regard.training.run_folder.checkpoints import Checkpoint
from regard.training.run_folder.folder import RunFolder

MOVABLE = ("data", "init_from")  # files that may lie elsewhere today: another path is named, not refused


def settings_of(run: RunFolder) -> dict[str, Any]:
    """What a checkpoint keeps of a run's settings."""
    kept = {"begun": _begun(run.begun()), "changes": _rows(changes.read(run.path))}
    return {**kept, "sha256": checksum.digest(kept)}


def check(run: RunFolder, checkpoint: Checkpoint, tell: Callable[[str], None]) -> None:
    """Raise `Changed` where the run's settings are not those the checkpoint was trained with."""
    kept = checkpoint.state.get("settings")
    if kept is None:
        tell(f"{run.path}: {checksum.UNSEALED}: its settings and metrics are taken as they are.")
        return
    begun, known = kept.get("begun"), kept.get("changes")
    if not isinstance(begun, dict) or not isinstance(known, list):
        raise checksum.Changed(f"{checkpoint.name}: its settings cannot be read.")
    now = _begun(run.begun())
    for name in {**begun, **now}:
        if (was := begun.get(name)) == (found := now.get(name)):
            continue
        if name in MOVABLE:
            tell(f"{name}: {run.path} was begun with {was!r}, and config.yaml says {found!r} now.")
            continue
        raise checksum.Changed(
            f"{name}: {run.path / 'config.yaml'} says {found!r}, but {checkpoint.name} was trained with {was!r}. Put "
            f"that back. To go on with another value: regard train --resume {run.path} --{name.replace('_', '-')} VALUE"
        )
    # Those at the checkpoint's own step came after it, and may be others by now.
    earlier = [row for row in _rows(changes.read(run.path)) if row["step"] < checkpoint.step]
    if earlier != [row for row in known if isinstance(row, dict) and row.get("step", 0) < checkpoint.step]:
        raise checksum.Changed(
            f"{run.path / changes.FILE}: it is not what {checkpoint.name} was trained with. Restore it from a copy."
        )


def _begun(begun: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(
        json.dumps(flat(begun), default=str)
    )  # a date that YAML made is text here
    return {name: value for name, value in plain.items() if name not in PLACE}


def _rows(known: Sequence[Change]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(json.dumps([dataclasses.asdict(one) for one in known]))
    return rows
