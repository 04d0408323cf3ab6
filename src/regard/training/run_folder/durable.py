"""Writing so that it stays written: fsync, then rename; reading that cannot hang; one error for a disk that refuses."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import RegardError

_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "your quota on this disk is used up. Free some space",
    errno.EFBIG: "the file would be larger than this process may write (ulimit -f). Raise the limit",
    errno.EROFS: "the file system is read-only. Choose another folder with --out",
    errno.EACCES: "there is no permission to write here. Choose another folder with --out",
    errno.EPERM: "there is no permission to write here. Choose another folder with --out",
    errno.ENOTDIR: "a part of this path is a file. Choose another folder with --out",
    errno.ENOENT: "its folder was moved or deleted. Put the folder back",
}
OLD = ".old-"  # before the name of a folder that is being replaced
LONGEST_TEXT = 1 << 28  # bytes of a file of settings, metrics or other text that is read at once


class StorageFailed(RegardError, OSError):
    """A file could not be written; nothing half-written took its place."""


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn what the system says about a failed write into words."""
    try:
        yield
    except StorageFailed:
        raise
    except OSError as trouble:
        number = trouble.errno or 0
        why = _REASONS.get(number, f"{trouble.strerror or trouble}. Look at the disk")
        raise StorageFailed(f"cannot write {path}: {why}, then continue with --resume.") from trouble


def write(path: Path, content: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with reporting(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(handle, left) :]
            os.fsync(handle)
        finally:
            os.close(handle)


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: readers see the old content or the new."""
    part = path.with_name(f".part-{path.name}")
    try:
        write(part, content)
        with reporting(path):
            os.replace(part, path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def read(path: Path, most: int = LONGEST_TEXT) -> bytes:
    """The content of a plain file; an OSError for a pipe, a device, a folder, or more than `most` bytes.

    Opened without waiting, so that a pipe in the place of a file cannot hold the reader up, and measured before memory
    is taken for it.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if facts.st_size > most:
            raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, more than {most}", str(path))
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(facts.st_size)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing; the disk has the name of each before this returns."""
    missing = []
    place = folder.absolute()
    while not place.is_dir():
        if place.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
        missing.append(place)
        place = place.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        with suppress(PermissionError):  # one may be allowed to add names to a folder and not to list them
            sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's list of names."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_folder(target: Path, files: dict[str, bytes]) -> None:
    """Write a folder of files whole or not at all, in place of one of that name."""
    part = target.with_name(f".part-{target.name}")
    try:
        with reporting(part):
            remove(part)
            part.mkdir()  # not its parents: a folder that was moved away must not come back half empty
        for name, content in files.items():
            write(part / name, content)
        with reporting(target):
            sync_folder(part)
            if target.exists():
                _exchange(part, target)
            else:
                os.rename(part, target)
            sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            remove(part)
        raise


def _exchange(part: Path, target: Path) -> None:
    """Put one folder in the place of another. A kill between the two renames leaves `.old-…`, which readers know."""
    old = target.with_name(f"{OLD}{target.name}")
    remove(old)
    os.rename(target, old)
    try:
        os.rename(part, target)
    except OSError:
        os.rename(old, target)
        raise
    sync_folder(target.parent)
    remove(old)


def restore(parent: Path) -> None:
    """Bring back what a process was about to replace when it died; remove what it had not finished."""
    for old in parent.glob(f"{OLD}*"):
        target = old.with_name(old.name.removeprefix(OLD))
        if target.exists():
            remove(old)
        else:
            os.rename(old, target)
            sync_folder(parent)
    for part in [*parent.glob(".part-*"), *parent.glob(".gone-*")]:
        remove(part) if part.is_dir() else part.unlink()


def remove(folder: Path) -> None:
    """Delete a folder if it is there."""
    if folder.exists():
        shutil.rmtree(folder)
