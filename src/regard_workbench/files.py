"""Reading untrusted paths: only regular files are opened, and at most a given number of bytes is read.

Opening a FIFO blocks until a writer comes, and a device can be endless. Both are refused at once.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from regard.errors import BadValue

PIECE = 2**20  # bytes read at a time, for callers that read in chunks
LONGEST = 200  # characters of a path shown in a message
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe (FIFO)"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class NotAFile(OSError):
    """A path is not a regular file; `strerror` says what it is."""


def opened(path: str | Path) -> BinaryIO:
    """A regular file, open for reading. Raises OSError for anything else, and never blocks."""
    try:
        _check_kind(os.stat(path))  # before opening: opening some devices has side effects
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (ValueError, UnicodeError):  # a NUL character, or one that the file system cannot encode
        raise OSError(errno.EINVAL, "no file can have this name") from None
    try:
        _check_kind(os.fstat(handle))  # again: the path may have been replaced meanwhile
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _check_kind(found: os.stat_result) -> None:
    for is_kind, words in _KINDS:
        if is_kind(found.st_mode):
            raise NotAFile(errno.EINVAL, f"it is {words}, where a file was expected")


def read_bytes(path: str | Path, argument: str, most: int) -> bytes:
    """The content of a file of at most `most` bytes; an error that names the argument otherwise."""
    try:
        with opened(path) as file:
            # Python makes room for all that is asked for, so ask for no more than the file says it has.
            content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
            while len(content) <= most and (piece := file.read(PIECE)):  # it has grown, or lies in /proc
                content += piece
    except OSError as trouble:
        raise BadValue(f"{argument}: cannot read {shown(path)}: {trouble.strerror or trouble}.") from None
    if len(content) > most:
        raise BadValue(f"{argument}: expected at most {most:,} bytes, {shown(path)} holds more.")
    return content


def shown(path: str | Path) -> str:
    """A path for a message: cut if it is long, escaped if it contains control characters."""
    text = str(path) if len(str(path)) <= LONGEST else str(path)[:LONGEST] + "…"
    return text if text.isprintable() else repr(text)
