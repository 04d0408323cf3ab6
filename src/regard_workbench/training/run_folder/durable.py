"""Durable writes (fsync, then rename), reads that cannot block, and one error class for everything storage refuses."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import RegardError
from regard_workbench.files import NotAFile, opened

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
# A read that fails with one of these says what lies at the path; any other failure says nothing about the file.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
OLD = ".old-"  # prefix of a folder that is being replaced
LONGEST_TEXT = 1 << 28  # bytes: the limit for text files, which are read at once


class StorageFailed(RegardError, OSError):
    """A file could not be written; no partial file replaced it."""


class ReadFailed(RegardError):
    """A file could not be read, which does not show that it is missing or damaged.

    It is no OSError, so that code which expects a missing or damaged file does not go on without this one.
    """


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn an OSError into a `StorageFailed` that says what to do."""
    try:
        yield
    except StorageFailed:
        raise
    except OSError as error:
        number = error.errno or 0
        why = _REASONS.get(number, f"{error.strerror or error}. Check the disk")
        raise StorageFailed(f"cannot write {path}: {why}, then continue with --resume.") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError that says nothing about the file (a failing disk, no permission) into a `ReadFailed`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NotAFile) or error.errno in _NO_FILE:
            raise
        raise ReadFailed(
            f"cannot read {path}: {error.strerror or error}. Nothing was used in its place. Try again; if it cannot be "
            "read any more, restore it from a copy."
        ) from error


def write(path: Path, content: bytes) -> None:
    """Write a file and fsync it."""
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
    """Write a file atomically: readers see the old content or the new."""
    unfinished = path.with_name(f".part-{path.name}")
    try:
        write(unfinished, content)
        with reporting(path):
            os.replace(unfinished, path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def read(path: Path, most: int = LONGEST_TEXT) -> bytes:
    """Read a regular file of at most `most` bytes.

    An OSError says what lies there instead: nothing, a pipe, a device, a folder, a larger file.
    """
    with reading(path), opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:  # before memory is allocated
            raise NotAFile(errno.EFBIG, f"it has {size} bytes, more than {most}", str(path))
        return file.read(size)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and fsync each parent."""
    missing = []
    path = folder.absolute()
    while not path.is_dir():
        if path.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        missing.append(path)
        path = path.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        with suppress(PermissionError):  # a folder may be writable but not readable
            sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names in it are on disk."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_folder(target: Path, files: dict[str, bytes]) -> None:
    """Write a folder of files atomically, replacing one of the same name."""
    unfinished = target.with_name(f".part-{target.name}")
    try:
        with reporting(unfinished):
            remove(unfinished)
            unfinished.mkdir()  # not its parents: a run folder that was moved away must not reappear half empty
        for name, content in files.items():
            write(unfinished / name, content)
        with reporting(target):
            sync_folder(unfinished)
            if target.exists():
                _exchange(unfinished, target)
            else:
                os.rename(unfinished, target)
            sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            remove(unfinished)
        raise


def _exchange(part: Path, target: Path) -> None:
    """Replace one folder by another. A kill between the two renames leaves `.old-…`, which readers recognise."""
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
    """Clean up after a process that was killed: restore folders it was replacing, remove unfinished ones."""
    for old in parent.glob(f"{OLD}*"):
        target = old.with_name(old.name.removeprefix(OLD))
        if target.exists():
            remove(old)
        else:
            os.rename(old, target)
            sync_folder(parent)
    for unfinished in [*parent.glob(".part-*"), *parent.glob(".gone-*")]:
        remove(unfinished) if unfinished.is_dir() else unfinished.unlink()


def remove(folder: Path) -> None:
    """Delete a folder if it exists."""
    if folder.exists():
        shutil.rmtree(folder)
