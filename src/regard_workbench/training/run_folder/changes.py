"""Settings that were changed when a run was resumed, each with the step from which it applies.

`config.yaml` holds the settings a run was started with and is never rewritten. A resume adds its changes to
`changes.json`: {"changes": [{"step": 120, "setting": "optim.lr", "was": 0.001, "now": 0.01}], "sha256": …}. The current
settings are `config.yaml` with all changes applied in order. (An earlier version wrote the list alone.)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.training.config import FIXED, Config, flat, settings
from regard_workbench.training.run_folder import checksum, durable

FILE = "changes.json"
LOCATION = ("out", "name")  # of the run folder, which may be moved
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
        found = [Change(**row) for row in rows]
        may_change = settings().keys() - {*FIXED, *LOCATION}
        for one in found:
            if type(one.step) is not int or one.step < 0 or one.setting not in may_change:
                raise ValueError(f"{one.setting!r} cannot have changed at step {one.step!r}")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadValue(
            f"{path}: expected the list of settings that were changed on resume, but it cannot be read: {error}. "
            "Restore it from a copy; without it the settings of this run are unknown."
        ) from None
    return found


def write(folder: Path, changes: Sequence[Change]) -> None:
    """Replace the changes of a run."""
    rows = [dataclasses.asdict(one) for one in changes]
    durable.replace(folder / FILE, checksum.json_bytes({"changes": rows}))


def until(changes: Sequence[Change], step: int) -> list[Change]:
    """The changes made up to a step."""
    return [one for one in changes if one.step <= step]


def applied(initial: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Apply changes to the settings a run was started with, by dotted name."""
    return {**flat(initial), **{one.setting: one.now for one in changes}}


def between(before: Config, after: Config, step: int) -> list[Change]:
    """The differences between two complete configurations, as changes at a step."""
    was, now = (json.loads(json.dumps(flat(dataclasses.asdict(one)))) for one in (before, after))
    return [Change(step, name, was[name], now[name]) for name in was if name not in LOCATION and was[name] != now[name]]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "unset" if value is None else str(value)
