"""`metrics.jsonl`: one JSON object a line, with `step` and `loss`. Lines are only ever added.

A process that dies while it writes leaves a torn last line; one that dies between two checkpoints leaves lines of steps
that will be taken again. `cut` removes both when a run goes on, so that each step stands there once.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from regard.training import durable

Record = dict[str, Any]


class Metrics:
    """The open file of a run that trains."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with durable.reporting(path):
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Record) -> None:
        """Add a line in one write, so that a reader never waits for half of one."""
        line = (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        with durable.reporting(self.path):
            left = memoryview(line)
            while left:
                left = left[os.write(self._handle, left) :]

    def sync(self) -> None:
        """Wait until the disk has all lines; a special file (a pipe) has no disk to wait for."""
        with durable.reporting(self.path):
            if self.path.is_file():
                os.fsync(self._handle)

    def close(self) -> None:
        """Done."""
        os.close(self._handle)


def read(path: Path) -> list[Record]:
    """Every whole line; a torn last one is left out."""
    if not path.exists():
        return []
    found: list[Record] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            found.append(record)
    return found


def cut(path: Path, before: int) -> None:
    """Keep the whole lines of steps before `before`, each step once."""
    if not path.exists():
        return
    kept = {record["step"]: record for record in read(path) if record["step"] < before}
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for _, record in sorted(kept.items())]
    durable.replace(path, "".join(lines).encode())


def plain(value: Any) -> Any:
    """The same data with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
