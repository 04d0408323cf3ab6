"""A disk with faults, under the file layer: calls are counted, one of them kills or fails, unsynced writes are lost.

`Disk(base)` replaces the calls of `os` in this process (one that was forked for it). Only what lies under
`base` counts.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ONE_PATH = ("mkdir", "unlink", "rmdir", "remove")
TWO_PATHS = ("rename", "replace")
NEED_SPACE = ("open", "write", "mkdir")


class Disk:
    """Counts calls that change files under `base`; `strike` is called in the one numbered `at` (0: in none).

    `half`: half of what that call writes is written first. `full`: from that call on, what needs space fails.
    """

    def __init__(
        self, base: Path, at: int = 0, strike: Callable[[], None] = lambda: None, half: bool = False, full: bool = False
    ) -> None:
        self.base, self.at, self.strike, self.half, self.full = str(base), at, strike, half, full
        self.calls = 0
        self.log: list[str] = []
        self.handles: dict[int, str] = {}
        self.real: dict[str, Any] = {}
        self.image = Image(base)

    def install(self) -> Disk:
        """Take the place of the calls in `os`."""
        for name in ("open", "write", "fsync", "ftruncate", "close", *ONE_PATH, *TWO_PATHS):
            self.real[name] = getattr(os, name)
        os.open, os.write, os.fsync, os.close = self._open, self._write, self._fsync, self._close  # type: ignore
        os.ftruncate = self._ftruncate  # type: ignore[assignment]
        for name in ONE_PATH:
            setattr(os, name, self._named(name, paths=1))
        for name in TWO_PATHS:
            setattr(os, name, self._named(name, paths=2))
        return self

    def _inside(self, path: Any, options: dict[str, Any]) -> bool:
        if options.get("dir_fd") is not None:
            return options["dir_fd"] in self.handles
        try:
            return os.path.abspath(os.fsdecode(os.fspath(path))).startswith(self.base)
        except TypeError:
            return False

    def _count(self, words: str, half: Callable[[], object] | None = None) -> None:
        self.calls += 1
        self.log.append(words)
        if self.full and 0 < self.at <= self.calls:
            if words.startswith(NEED_SPACE):
                if half is not None:
                    half()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif self.calls == self.at:
            if self.half and half is not None:
                half()
            self.strike()

    def _open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        inside = self._inside(path, options)
        if inside and flags & WRITES:
            self._count(f"open {path}")
        handle: int = self.real["open"](path, flags, mode, **options)
        if inside:
            self.handles[handle] = str(path)
        return handle

    def _close(self, handle: int) -> None:
        self.handles.pop(handle, None)
        self.real["close"](handle)

    def _write(self, handle: int, data: Any) -> int:
        if handle in self.handles:
            part = bytes(data)[: len(data) // 2]
            self._count(f"write {self.handles[handle]}", lambda: self.real["write"](handle, part))
        found: int = self.real["write"](handle, data)
        return found

    def _ftruncate(self, handle: int, length: int) -> None:
        if handle in self.handles:
            self._count(f"ftruncate {self.handles[handle]}")
        self.real["ftruncate"](handle, length)

    def _fsync(self, handle: int) -> None:
        if handle in self.handles:
            self._count(f"fsync {self.handles[handle]}")
            self.image.synced(handle, self.real["open"])
        self.real["fsync"](handle)

    def _named(self, name: str, paths: int) -> Callable[..., None]:
        real = self.real[name]

        def call(*arguments: Any, **options: Any) -> None:
            if self._inside(arguments[0], options):
                self._count(" ".join([name, *map(str, arguments[:paths])]))
            real(*arguments, **options)

        return call


class Image:
    """What a disk would hold after a power cut: of each file the content at its last fsync, of a folder the names."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.files: dict[int, bytes] = {}
        self.folders: dict[int, dict[str, tuple[int, bool]]] = {}
        self.held: dict[int, int] = {}  # open handles, so that no number of a deleted file comes again

    def synced(self, handle: int, real_open: Callable[..., int]) -> None:
        """Note what one fsync makes safe."""
        facts = os.fstat(handle)
        self.held.setdefault(facts.st_ino, os.dup(handle))
        if not stat.S_ISDIR(facts.st_mode):
            with open(f"/proc/self/fd/{handle}", "rb") as file:
                self.files[facts.st_ino] = file.read()
            return
        names: dict[str, tuple[int, bool]] = {}
        with os.scandir(handle) as entries:
            for entry in entries:
                number, folder = entry.inode(), entry.is_dir(follow_symlinks=False)
                names[entry.name] = (number, folder)
                if number not in self.held:
                    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
                    self.held[number] = real_open(entry.name, flags, dir_fd=handle)
        self.folders[facts.st_ino] = names

    def write(self, into: Path) -> None:
        """Make a folder that holds what `base` would hold."""
        self._folder(os.stat(self.base).st_ino, into)

    def _folder(self, number: int, into: Path) -> None:
        os.mkdir(into)
        for name, (inner, folder) in self.folders.get(number, {}).items():
            if folder:
                self._folder(inner, into / name)
            else:
                (into / name).write_bytes(self.files.get(inner, b""))


def kill() -> None:
    """End this process as nothing else would."""
    os.kill(os.getpid(), signal.SIGKILL)


def spoil(base: Path, seed: int) -> None:
    """What a disk may hold whose fsync lied: of each file all, a part, zeros, or nothing; some names are gone."""
    own = random.Random(seed)
    for path in sorted(path for path in base.rglob("*") if path.is_file()):
        data = path.read_bytes()
        fate = own.random()
        if fate < 0.06:
            path.unlink()
        elif fate < 0.12:
            path.write_bytes(data[: own.randrange(len(data) + 1)])
        elif fate < 0.18:
            path.write_bytes(bytes(len(data)))
        elif fate < 0.24 and data:
            start = own.randrange(len(data))
            path.write_bytes(data[:start] + bytes(len(data) - start))
