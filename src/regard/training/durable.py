"""Writing so that it stays written: fsync, then rename; and one error that says why a disk did not take it."""

from __future__ import annotations

import errno
import os
import shutil
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
}


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
            part.mkdir(parents=True)
        for name, content in files.items():
            write(part / name, content)
        with reporting(target):
            sync_folder(part)
            if (
                target.exists()
            ):  # a folder cannot be renamed over another; `restore` repairs a kill between the two
                old = target.with_name(f".old-{target.name}")
                remove(old)
                os.rename(target, old)
                os.rename(part, target)
                remove(old)
            else:
                os.rename(part, target)
            sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            remove(part)
        raise


def restore(parent: Path) -> None:
    """Bring back what a process was about to replace when it died; remove what it had not finished."""
    for old in parent.glob(".old-*"):
        target = old.with_name(old.name.removeprefix(".old-"))
        if target.exists():
            remove(old)
        else:
            os.rename(old, target)
    for part in [*parent.glob(".part-*"), *parent.glob(".gone-*")]:
        remove(part) if part.is_dir() else part.unlink()


def remove(folder: Path) -> None:
    """Delete a folder if it is there."""
    if folder.exists():
        shutil.rmtree(folder)
