"""An exclusive lock on a folder. The system releases it when its process ends, in whatever way.

Two things are locked: the folder itself, so that deleting a file does not release the lock, and the file `.lock` inside
it, which also names the holder and works on systems that cannot lock folders. On file systems without locks, the
contents of `.lock` decide: the lock of a process that no longer exists is taken over.

The open handle of the folder also tells whether the folder was moved or deleted while the run writes into it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.training.run_folder import durable

FILE = ".lock"
LONGEST = 4096  # bytes
SECONDS_TO_SIGN = 0.5  # how long to wait until the holder has written its name


class FolderLocked(BadValue):
    """Another process uses the folder."""


class Moved(durable.StorageFailed):
    """The run folder is no longer where the run was started or resumed."""


class LockedFolder:
    """A folder that this process has locked: its handle refers to the same folder after its path has changed."""

    def __init__(self, path: Path, handle: int) -> None:
        """`handle`: -1 where folders cannot be opened."""
        self.path, self._handle = path, handle

    def check(self, last: str) -> None:
        """Raise `Moved` if the path no longer leads to this folder. `last` names its newest checkpoint, or is empty."""
        if self._handle < 0 or self._is_at(self.path):
            return
        path = self._current_path()
        if path is None:
            left = f" Its last checkpoint was {last}." if last else ""
            raise Moved(
                f"{self.path} was deleted, moved or replaced while the run was training: nothing more was saved.{left} "
                "Restore it from a copy, or train again."
            )
        kept = f"The last complete checkpoint is {path / 'checkpoints' / last}" if last else "It has no checkpoint yet"
        raise Moved(
            f"{self.path} was moved to {path} while the run was training, so nothing more was saved. {kept}. Continue "
            f"with: regard train --resume {path}"
        )

    def _is_at(self, path: Path) -> bool:
        with durable.reporting(self.path):
            opened = os.fstat(self._handle)
        try:
            at_path = os.stat(path)
        except OSError:
            return False
        return (at_path.st_dev, at_path.st_ino) == (opened.st_dev, opened.st_ino)

    def _current_path(self) -> Path | None:
        """The current path of the folder, if it still exists and the system tells."""
        with suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{self._handle}"))
            return path if self._is_at(path) else None
        return None


@contextmanager
def locked(folder: Path) -> Iterator[LockedFolder]:
    """Lock an existing folder; raise `FolderLocked` if another process holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield LockedFolder(folder, -1)
        return
    path = folder / FILE
    with durable.reporting(path):
        folder_handle = os.open(folder, os.O_RDONLY)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file. Remove it")
        except BaseException:
            os.close(folder_handle)
            raise
    try:
        has_locks = False
        for descriptor in (folder_handle, handle):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_locks = True
            except BlockingIOError:
                raise FolderLocked(_message(folder, _holder(handle, wait=SECONDS_TO_SIGN))) from None
            except OSError:  # no locks on this file system, or none on folders
                continue
        if not has_locks:
            _check_holder(folder, _holder(handle))
        _sign(handle)
        try:
            yield LockedFolder(folder, folder_handle)
        finally:
            with suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        for descriptor in (handle, folder_handle):
            # The lock is released even if closing fails; that error would hide an earlier one.
            with suppress(OSError):
                os.close(descriptor)


def _sign(handle: int) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, holder.encode(), 0)


def _holder(handle: int, wait: float = 0.0) -> dict[str, Any]:
    """Read who holds the lock; empty if no process does, or if it cannot be read."""
    limit = time.monotonic() + wait
    try:
        while not (text := os.pread(handle, LONGEST, 0)) and time.monotonic() < limit:
            time.sleep(0.01)
        holder = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    fits = isinstance(holder, dict) and type(holder.get("pid")) is int and isinstance(holder.get("host"), str)
    return holder if fits else {}


def _message(folder: Path, holder: dict[str, Any]) -> str:
    who = ""
    if holder:
        since = str(holder.get("since", ""))[:32]
        who = f": process {holder['pid']} on {holder['host'][:64]!r}" + (f", since {since}" if since else "")
    return f"out: another process uses {folder}{who}. Wait for it, stop it, or choose another --out."


def _check_holder(folder: Path, holder: dict[str, Any]) -> None:
    """Without file locks, raise unless the process named in `.lock` no longer exists on this machine."""
    if not holder or holder["pid"] == os.getpid():
        return
    if holder["host"] == socket.gethostname():
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            return
        except (PermissionError, OverflowError):
            pass
        raise FolderLocked(_message(folder, holder))
    raise FolderLocked(f"{_message(folder, holder)} If that process is gone, remove {folder / FILE}.")
