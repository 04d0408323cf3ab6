"""Settings that were changed when a run was resumed, each with the step from which on it holds.

`config.yaml` says what a run began with and is never rewritten. What a resume changed is added to `changes.json` beside
it: {"changes": [{"step": 120, "setting": "optim.lr", "was": 0.001, "now": 0.01}], "sha256": …}. The settings in force
are the first with the second applied in order. (An earlier version wrote the list alone.)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard.training.config import FIXED, Config, flat, settings
from regard.training.run_folder import checksum, durable

FILE = "changes.json"
PLACE = ("out", "name")  # where a run lies; it may be moved
NO_EFFECT = ("log_every", "save_every", "keep", "report_to")  # on what a run learns


@dataclass(frozen=True)
class Change:
    """From `step` on, `setting` was `now`."""

    step: int
    setting: str
    was: Any
    now: Any

    def __str__(self) -> str:
        """For people: `optim.lr 0.01 (was 0.001) from step 120 on`."""
        return f"{self.setting} {_words(self.now)} (was {_words(self.was)}) from step {self.step} on"

    @property
    def matters(self) -> bool:
        """Whether what a run learns may depend on it."""
        return self.setting not in NO_EFFECT


def read(folder: Path) -> list[Change]:
    """The changes of a run, the first first; none where there is no such file."""
    path = folder / FILE
    try:
        data = durable.read(path)
        rows = json.loads(data)
        if isinstance(rows, dict):
            rows = checksum.read_json(data, path)[0].get("changes")
        if not isinstance(rows, list):
            raise ValueError(f"it holds a {type(rows).__name__}")
        found = [Change(**row) for row in rows]
        may_change = settings().keys() - {*FIXED, *PLACE}
        for one in found:
            if type(one.step) is not int or one.step < 0 or one.setting not in may_change:
                raise ValueError(f"{one.setting!r} cannot have changed at step {one.step!r}")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as trouble:
        raise BadValue(
            f"{path}: expected the list of settings that were changed on resume, but it cannot be read: {trouble}. "
            "Restore it from a copy; without it the settings of this run are not known."
        ) from None
    return found


def write(folder: Path, changes: Sequence[Change]) -> None:
    """Replace the changes of a run."""
    rows = [dataclasses.asdict(one) for one in changes]
    durable.replace(folder / FILE, checksum.json_bytes({"changes": rows}))


def until(changes: Sequence[Change], step: int) -> list[Change]:
    """The changes that a run had seen when it stood at a step."""
    return [one for one in changes if one.step <= step]


def applied(begun: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """The settings a run began with, by dotted name, as the changes left them."""
    return {**flat(begun), **{one.setting: one.now for one in changes}}


def between(before: Config, after: Config, step: int) -> list[Change]:
    """What differs between two complete sets of settings, as changes at a step."""
    was, now = (json.loads(json.dumps(flat(dataclasses.asdict(one)))) for one in (before, after))
    return [
        Change(step, name, was[name], now[name])
        for name in was
        if name not in PLACE and was[name] != now[name]
    ]


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_words, value))
    return "unset" if value is None else str(value)
