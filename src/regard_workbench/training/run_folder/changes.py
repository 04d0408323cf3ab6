"""Settings that were changed when a run was resumed, each with the step from which it applies.

`config.yaml` holds the settings a run was started with and is never rewritten. A resume adds its changes to
`changes.json`: {"changes": [{"step": 120, "setting": "optim.lr", "was": 0.001, "now": 0.01}], "sha256": …}. The current
settings are `config.yaml` with all changes applied in order. (An earlier version wrote the list alone.)

A checkpoint holds under `settings` what both files held when it was written, and their SHA-256. A run whose settings
differ from those of its weights is refused; the error names the setting.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue
from regard_workbench.training.config import FIXED, Config, flat, settings
from regard_workbench.training.run_folder import checksum, durable

if TYPE_CHECKING:
    from regard_workbench.training.run_folder.checkpoints import Checkpoint
    from regard_workbench.training.run_folder.folder import RunFolder

FILE = "changes.json"
LOCATION = ("out", "name")  # of the run folder, which may be moved
MOVABLE = ("data", "init_from")  # files may have been moved: another path is reported, not refused
NO_EFFECT = ("log_every", "save_every", "keep", "report_to", "loaders")  # on what a run learns


@dataclass(frozen=True)
class Change:
    """From `step` on, `setting` is `now`."""

    step: int
    setting: str
    was: Any
    now: Any

    def __str__(self) -> str:
        """As text: `optim.lr 0.01 (was 0.001) from step 120 on`."""
        return f"{self.setting} {_text(self.now)} (was {_text(self.was)}) from step {self.step} on"

    @property
    def matters(self) -> bool:
        """Whether the trained weights may depend on it."""
        return self.setting not in NO_EFFECT


def read(folder: Path) -> list[Change]:
    """The changes of a run in order; empty if there is no such file."""
    path = folder / FILE
    try:
        data = durable.read(path)
        rows = json.loads(data)
        if isinstance(rows, dict):
            rows = checksum.read_json(data, path)[0].get("changes")
        if not isinstance(rows, list):
            raise ValueError(f"it holds a {type(rows).__name__}")
        changes = [Change(**row) for row in rows]
        may_change = settings().keys() - {*FIXED, *LOCATION}
        for change in changes:
            if type(change.step) is not int or change.step < 0 or change.setting not in may_change:
                raise ValueError(f"{change.setting!r} cannot have changed at step {change.step!r}")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadValue(
            f"{path}: expected the list of settings that were changed on resume, but it cannot be read: {error}. "
            "Restore it from a copy; without it the settings of this run are unknown."
        ) from None
    return changes


def write(folder: Path, changes: Sequence[Change]) -> None:
    """Replace the changes of a run."""
    durable.replace(folder / FILE, checksum.json_bytes({"changes": _rows(changes)}))


def until(changes: Sequence[Change], step: int) -> list[Change]:
    """The changes made up to a step."""
    return [change for change in changes if change.step <= step]


def applied(initial: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Apply changes to the settings a run was started with, by dotted name."""
    return {**flat(initial), **{change.setting: change.now for change in changes}}


def between(before: Config, after: Config, step: int) -> list[Change]:
    """The differences between two complete configurations, as changes at a step."""
    was, new = (json.loads(json.dumps(flat(dataclasses.asdict(config)))) for config in (before, after))
    return [Change(step, name, was[name], new[name]) for name in was if name not in LOCATION and was[name] != new[name]]


def settings_of(run: RunFolder) -> dict[str, Any]:
    """The settings of a run, as a checkpoint holds them."""
    both = {"begun": _begun(run), "changes": _rows(read(run.path))}
    return {**both, "sha256": checksum.digest(both)}


def check_settings(run: RunFolder, checkpoint: Checkpoint, tell: Callable[[str], None]) -> None:
    """Raise `FileChanged` if the run's settings differ from those the checkpoint was trained with."""
    trained = checkpoint.state.get("settings")
    if trained is None:
        tell(f"{run.path}: {checksum.NO_CHECKSUM}: its settings and metrics are taken as they are.")
        return
    initial, rows = trained.get("begun"), trained.get("changes")
    if not isinstance(initial, dict) or not isinstance(rows, list):
        raise checksum.FileChanged(f"{checkpoint.name}: its settings cannot be read.")
    current = _begun(run)
    for name in {**initial, **current}:
        was, is_now = initial.get(name), current.get(name)
        if was == is_now:
            continue
        if name in MOVABLE:
            tell(f"{name}: {run.path} was started with {was!r}, but config.yaml says {is_now!r} now.")
            continue
        raise checksum.FileChanged(
            f"{name}: {run.path / 'config.yaml'} says {is_now!r}, but {checkpoint.name} was trained with {was!r}. "
            f"Restore it. To change it: regard train --resume {run.path} --{name.replace('_', '-')} VALUE"
        )
    # Changes at the checkpoint's own step were made after it, and may differ.
    earlier = [row for row in _rows(read(run.path)) if row["step"] < checkpoint.step]
    if earlier != [row for row in rows if isinstance(row, dict) and row.get("step", 0) < checkpoint.step]:
        raise checksum.FileChanged(
            f"{run.path / FILE} differs from what {checkpoint.name} was trained with. Restore it from a copy."
        )


def _begun(run: RunFolder) -> dict[str, Any]:
    """The settings a run was started with, as JSON has them."""
    settings: dict[str, Any] = json.loads(json.dumps(flat(run.initial_settings()), default=str))  # YAML may hold dates
    return {name: value for name, value in settings.items() if name not in LOCATION}


def _rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(json.dumps([dataclasses.asdict(change) for change in changes]))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "unset" if value is None else str(value)
