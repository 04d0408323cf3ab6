"""`metrics.jsonl`: one JSON object a line, with `step` and `loss`. Lines are only ever added.

A process that dies while it writes leaves a torn last line; one that dies between two checkpoints leaves lines of steps
that will be taken again. `cut` removes both when a run goes on, so that each step stands there once. A checkpoint keeps
the length and the SHA-256 of the lines before it, so that a line that was changed later is noticed and named.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.training.run_folder import durable

Record = dict[str, Any]
LARGEST = 1 << 34  # bytes
ASIDE = "set-aside-metrics.jsonl"


class Metrics:
    """The open file of a run that trains."""

    def __init__(self, path: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        self.path, self.tell = path, tell
        self._owed = b""  # lines that the disk did not take; they are written before a checkpoint is
        with durable.reporting(path):
            self._handle = self._open()
            self.plain = stat.S_ISREG(
                os.fstat(self._handle).st_mode
            )  # not a pipe, which has no content to check
            written = durable.read(path, LARGEST) if self.plain else b""
            self._length, self._sum = len(written), hashlib.sha256(written)
            if self.plain:
                durable.sync_folder(path.parent)

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Record) -> None:
        """Add a line in one write, so that a reader never waits for half of one; a line that fails is tried again."""
        self._owed += (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        self._pay()

    def _pay(self) -> None:
        """Write what is owed: all of it, or nothing of it stays."""
        if not self._owed:
            return
        with durable.reporting(self.path):
            try:
                left = memoryview(self._owed)
                while left:
                    left = left[os.write(self._handle, left) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._handle, self._length)
                raise
        self._length += len(self._owed)
        self._sum.update(self._owed)
        self._owed = b""

    def sync(self) -> None:
        """Wait until the disk has all lines; a special file (a pipe) has no disk to wait for."""
        self._pay()
        if not self.plain:
            return
        with durable.reporting(self.path):
            if not self._in_place():
                self._put_back()
            os.fsync(self._handle)

    def seal(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of the lines before it."""
        return {"bytes": self._length, "sha256": self._sum.hexdigest()} if self.plain else None

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def _put_back(self) -> None:
        """The file was deleted or replaced by another; what was written is still behind the open handle."""
        with os.fdopen(os.dup(self._handle), "rb") as file:
            file.seek(0)
            content = file.read(self._length)
        durable.replace(self.path, content)
        os.close(self._handle)
        self._handle = self._open()
        self.tell(f"{self.path} was deleted or replaced while the run was training; its lines are back.")

    def close(self) -> None:
        """Done."""
        os.close(self._handle)


def read(path: Path, tell: Callable[[str], None] = lambda text: None) -> list[Record]:
    """Every whole line; `tell` hears of those that cannot be read. A torn last one is left out: it may grow yet."""
    if not path.exists():
        return []
    try:
        *lines, _ = _content(path).split(b"\n")
    except OSError as trouble:
        tell(f"{path} cannot be read: {trouble.strerror or trouble}.")
        return []
    found, damaged = [], []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None:
            damaged.append(number)
        else:
            found.append(record)
    if damaged:
        where = ", ".join(map(str, damaged[:5])) + (
            f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
        )
        tell(f"{path} is damaged in line {where}: what stood there is left out.")
    return found


def changed(path: Path, told: Any) -> str:
    """Why the lines before a checkpoint are not those it was written after, in words; empty if they are."""
    if not isinstance(told, dict):  # of an earlier version
        return ""
    length, wanted = told.get("bytes"), told.get("sha256")
    if type(length) is not int or not isinstance(wanted, str):
        return f"{path}: the checkpoint does not say how long it was."
    try:
        lines = _content(path)[:length]
    except FileNotFoundError:
        return f"{path} is missing: {length} bytes of it were written." if length else ""
    except OSError as trouble:
        return f"{path} cannot be read: {trouble.strerror or trouble}."
    if len(lines) == length and hashlib.sha256(lines).hexdigest() == wanted:
        return ""
    words: list[str] = []
    read(path, words.append)
    short = f": it has {len(lines)} of {length} bytes" if len(lines) < length else ""
    return " ".join([f"{path} is not what was written (its SHA-256 differs){short}.", *words])


def cut(path: Path, before: int, told: Any = None, tell: Callable[[str], None] = lambda text: None) -> None:
    """Keep the lines that a checkpoint was written after, or without its word the whole ones of steps before `before`.

    Lines that are not what was written stay in a file aside, and those that can be read go on.
    """
    if not path.exists():
        return
    with durable.reporting(path):
        content = _content(path)
        why = changed(path, told)
    if isinstance(told, dict) and not why:
        kept = content[: told["bytes"]]
    else:
        rows = {
            row["step"]: row
            for row in read(path, tell if not why else lambda text: None)
            if row["step"] < before
        }
        kept = "".join(json.dumps(row, ensure_ascii=False) + "\n" for _, row in sorted(rows.items())).encode()
    if why:
        durable.replace(path.with_name(ASIDE), content)
        lines = kept.count(b"\n")
        tell(f"{path} is kept as {ASIDE}; the run goes on with the {lines} lines that can be read.")
    if kept != content:
        durable.replace(path, kept)


def plain(value: Any) -> Any:
    """The same data with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _content(path: Path) -> bytes:
    return durable.read(path, LARGEST)


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and type(record.get("step")) is int
    return record if whole else None
