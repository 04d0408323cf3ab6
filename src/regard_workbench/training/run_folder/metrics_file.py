"""`metrics.jsonl`: one JSON object per line, with `step` and `loss`, append-only.

A process killed during a write leaves a partial last line; one killed between two checkpoints leaves lines of steps
that will be repeated. `cut` removes both on resume, so that each step appears once. A checkpoint keeps the length and
the SHA-256 of the lines before it, so that a line changed later is detected.
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

from regard_workbench.training.run_folder import durable

Record = dict[str, Any]
LARGEST = 1 << 34  # bytes
ASIDE = "set-aside-metrics.jsonl"


class MetricsFile:
    """The open metrics file of a run that is training."""

    def __init__(self, path: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        self.path, self.tell = path, tell
        self._unwritten = b""  # lines whose write failed; they are written before the next checkpoint
        with durable.reporting(path):
            self._handle = self._open()
            self.regular = stat.S_ISREG(os.fstat(self._handle).st_mode)  # a pipe has no contents to verify
            written = durable.read(path, LARGEST) if self.regular else b""
            self._length, self._sum = len(written), hashlib.sha256(written)
            if self.regular:
                durable.sync_folder(path.parent)

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Record) -> None:
        """Append a line in one write, so that readers see complete lines; a failed line is retried with the next."""
        self._unwritten += (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        self._write()

    def _write(self) -> None:
        """Write the unwritten lines: all of them, or none."""
        if not self._unwritten:
            return
        with durable.reporting(self.path):
            try:
                left = memoryview(self._unwritten)
                while left:
                    left = left[os.write(self._handle, left) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._handle, self._length)
                raise
        self._length += len(self._unwritten)
        self._sum.update(self._unwritten)
        self._unwritten = b""

    def sync(self) -> None:
        """Fsync all lines. A special file (a pipe) is not synced."""
        self._write()
        if not self.regular:
            return
        with durable.reporting(self.path):
            if not self._is_at_path():
                self._restore()
            os.fsync(self._handle)

    def checksum(self) -> dict[str, Any] | None:
        """The length and SHA-256 of the lines so far, for a checkpoint."""
        return {"bytes": self._length, "sha256": self._sum.hexdigest()} if self.regular else None

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def _restore(self) -> None:
        """Write the file again after it was deleted or replaced; the open handle still has its contents."""
        with os.fdopen(os.dup(self._handle), "rb") as file:
            file.seek(0)
            content = file.read(self._length)
        durable.replace(self.path, content)
        os.close(self._handle)
        self._handle = self._open()
        self.tell(f"{self.path} was deleted or replaced while the run was training; its lines are restored.")

    def close(self) -> None:
        """Close the file; some file systems only now say that a line could not be written."""
        with durable.reporting(self.path):
            os.close(self._handle)


def read(path: Path, tell: Callable[[str], None] = lambda text: None) -> list[Record]:
    """Read all complete lines. Damaged ones are reported to `tell`; a partial last line may still be being written."""
    try:
        *lines, _ = _content(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        tell(f"{path} cannot be read: {error.strerror or error}.")
        return []
    records, damaged = [], []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None:
            damaged.append(number)
        else:
            records.append(record)
    if damaged:
        where = ", ".join(map(str, damaged[:5])) + (f" and {len(damaged) - 5} more" if len(damaged) > 5 else "")
        tell(f"{path} is damaged in line {where}: skipped.")
    return records


def changed(path: Path, expected: Any) -> str:
    """How the file differs from the `checksum()` in a checkpoint, as a message; empty if it matches."""
    if not isinstance(expected, dict):  # of an earlier version
        return ""
    length, wanted = expected.get("bytes"), expected.get("sha256")
    if type(length) is not int or not isinstance(wanted, str):
        return f"{path}: the checkpoint does not say how long it was."
    try:
        lines = _content(path)[:length]
    except FileNotFoundError:
        return f"{path} is missing: {length} bytes of it were written." if length else ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}."
    if len(lines) == length and hashlib.sha256(lines).hexdigest() == wanted:
        return ""
    damage: list[str] = []
    read(path, damage.append)
    short = f": it has {len(lines)} of {length} bytes" if len(lines) < length else ""
    return " ".join([f"{path} is not what was written (its SHA-256 differs){short}.", *damage])


def cut(path: Path, before: int, expected: Any = None, tell: Callable[[str], None] = lambda text: None) -> None:
    """Truncate to the lines of `expected`, a checkpoint's `checksum()`; without one, to the steps before `before`.

    If the file was changed, it is kept under another name, and the run continues with the lines that can be read.
    """
    if not path.exists():
        return
    with durable.reporting(path):
        content = _content(path)
        why = changed(path, expected)
    if isinstance(expected, dict) and not why:
        kept = content[: expected["bytes"]]
    else:
        rows = {row["step"]: row for row in read(path, tell if not why else lambda text: None) if row["step"] < before}
        kept = "".join(json.dumps(row, ensure_ascii=False) + "\n" for _, row in sorted(rows.items())).encode()
    if why:
        durable.replace(path.with_name(ASIDE), content)
        lines = kept.count(b"\n")
        tell(f"{path} is kept as {ASIDE}; the run continues with the {lines} lines that can be read.")
    if kept != content:
        durable.replace(path, kept)


def plain(value: Any) -> Any:
    """The same data with None for non-finite numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(nested) for key, nested in value.items()}
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
    valid = isinstance(record, dict) and type(record.get("step")) is int
    return record if valid else None
