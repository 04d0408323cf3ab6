"""Files that somebody else may have put where a file is expected: opened only if they are one, read up to a limit.

Opening a FIFO waits for a writer that may never come, and a device can be endless. Both are refused at once.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from regard.errors import BadValue

PIECE = 2**20  # bytes read at a time
LONGEST = 200  # letters of a path in a message
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class NotAFile(OSError):
    """A path leads to something else than a file; `strerror` says what it is."""


def opened(path: str | Path) -> BinaryIO:
    """A regular file, open for reading. Raises OSError for anything else, and never waits."""
    try:
        _check_kind(os.stat(path))  # first: opening some devices does something
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (ValueError, UnicodeError):  # a NUL inside, or letters the file system has no bytes for
        raise OSError(errno.EINVAL, "no file can have this name") from None
    try:
        _check_kind(os.fstat(handle))  # again: another may stand there now
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _check_kind(found: os.stat_result) -> None:
    for is_kind, words in _KINDS:
        if is_kind(found.st_mode):
            raise NotAFile(errno.EINVAL, f"it is {words}, where a file was expected")


def read_bytes(path: str | Path, argument: str, most: int) -> bytes:
    """The content of a file of at most so many bytes; an error that names the argument otherwise."""
    try:
        with opened(path) as file:
            found = file.read(most + 1)
    except OSError as trouble:
        raise BadValue(f"{argument}: cannot read {shown(path)}: {trouble.strerror or trouble}.") from None
    if len(found) > most:
        raise BadValue(f"{argument}: expected at most {most:,} bytes, {shown(path)} holds more.")
    return found


def shown(path: str | Path) -> str:
    """A path for a message: cut where it is long, escaped where it would steer a terminal."""
    text = str(path) if len(str(path)) <= LONGEST else str(path)[:LONGEST] + "…"
    return text if text.isprintable() else repr(text)
