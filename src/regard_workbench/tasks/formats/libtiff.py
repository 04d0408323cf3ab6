"""Libtiff without its own words: it prints what is wrong with a file into the terminal, past Python's streams."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

STDERR = 2  # the file that C writes errors to, whatever `sys.stderr` is
# "tempfile.tif: Using code not yet in table.": the name that Pillow gives a file, or a function of libtiff.
_ITS_OWN = re.compile(
    rb"(tempfile\.tif|_?(TIFF|LZW|ZIP|ZSTD|LZMA|LERC|WEBP|JPEG|OJPEG|Fax[34]|PackBits|PixarLog|LogLuv|Dump)\w*): "
)

_lock = threading.Lock()
_inside = 0  # threads that decode
_kept: tuple[int, BinaryIO] | None = None  # where errors went before, and where they go meanwhile


@contextmanager
def silenced() -> Iterator[None]:
    """Inside, what libtiff prints is dropped. What others print there meanwhile is printed behind it.

    Errors belong to the process, and pictures are decoded by threads: the first that enters diverts them, the last one
    that leaves puts them back.
    """
    global _inside
    with _lock:
        if _inside == 0:
            _divert()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _restore()


def _divert() -> None:
    global _kept
    try:
        before = os.dup(STDERR)
    except OSError:  # closed: nothing can be printed there
        return
    meanwhile = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_restore`)
    os.dup2(meanwhile.fileno(), STDERR)
    _kept = before, meanwhile


def _restore() -> None:
    global _kept
    if _kept is None:
        return
    before, meanwhile = _kept
    _kept = None
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(before, STDERR)
    os.close(before)
    with meanwhile:
        meanwhile.seek(0)
        for line in meanwhile:
            if not _ITS_OWN.match(line):
                os.write(STDERR, line)
