"""One process at a time in a folder. The lock ends with its process, however that ends; the loser is told who holds it.

The folder itself is locked, so that nobody gets in by deleting a file, and `.lock` inside it, which also says who is
there and works where folders cannot be locked. Where a file system has no locks, `.lock` alone decides: one whose
process is gone is taken over.
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
from regard.training.run_folder import durable

FILE = ".lock"
LONGEST = 4096  # bytes
SECONDS_TO_SIGN = 0.5  # until a process that has just taken the lock must have said so


class Held(BadValue):
    """Another process is at work in the folder."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only process at work in a folder that exists; `Held` if another one is."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder / FILE
    with durable.reporting(path):
        place = os.open(folder, os.O_RDONLY)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file. Remove it")
        except BaseException:
            os.close(place)
            raise
    try:
        locked = False
        for one in (place, handle):
            try:
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                raise Held(_words(folder, _holder(handle, wait=SECONDS_TO_SIGN))) from None
            except OSError:  # a file system without locks, or without locks of folders
                continue
        if not locked:
            _refuse_living(folder, _holder(handle))
        _sign(handle)
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)
        os.close(place)


def _sign(handle: int) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, words.encode(), 0)


def _holder(handle: int, wait: float = 0.0) -> dict[str, Any]:
    """Who signed the lock; empty where nobody did, or nothing that can be read."""
    limit = time.monotonic() + wait
    try:
        while not (text := os.pread(handle, LONGEST, 0)) and time.monotonic() < limit:
            time.sleep(0.01)
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    fits = isinstance(found, dict) and type(found.get("pid")) is int and isinstance(found.get("host"), str)
    return found if fits else {}


def _words(folder: Path, holder: dict[str, Any]) -> str:
    who = ""
    if holder:
        since = str(holder.get("since", ""))[:32]
        who = f": process {holder['pid']} on {holder['host'][:64]!r}" + (f", since {since}" if since else "")
    return f"out: another process is at work in {folder}{who}. Wait for it, stop it, or choose another --out."


def _refuse_living(folder: Path, holder: dict[str, Any]) -> None:
    """Without locks, the signature decides: a process of this machine that is gone holds nothing."""
    if not holder or holder["pid"] == os.getpid():
        return
    if holder["host"] == socket.gethostname():
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            return
        except (PermissionError, OverflowError):
            pass
        raise Held(_words(folder, holder))
    raise Held(f"{_words(folder, holder)} If that process is gone, remove {folder / FILE}.")
