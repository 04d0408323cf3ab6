"""Folders, zip and tar archives of strangers as names with bytes: no member is unpacked to the disk.

A name that points outside (`../x`, `/x`) is refused, and so is an archive that unpacks to far more than it holds. Of a
tar archive only regular files are members: links and devices are left out.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Self

from regard.errors import BadValue
from regard_workbench import files
from regard_workbench.tasks.formats.budget import SMALL, check_unpacked, unpacked_pieces
from regard_workbench.tasks.formats.file_errors import file_errors, reads_file

MOST_FILES = 200_000
FOLDER = "Unpack it yourself, and give the folder."
TAR = re.compile(r"\.(tar(\.(gz|bz2|xz))?|tgz|tbz2|txz)$", re.IGNORECASE)


class FolderFiles:
    """A folder, with the files below it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, endings: Sequence[str]) -> list[str]:
        """The files that end so, in order; hidden ones and links are left out."""
        try:
            names = [
                path.relative_to(self.path).as_posix()
                for path in sorted(self.path.rglob("*"))
                if path.suffix.lower() in endings and path.is_file() and not path.is_symlink()
            ]
        except OSError as error:
            raise BadValue(f"data: the folder {files.shown(self.path)} cannot be read: {error.strerror}.") from None
        return _visible(self.path, names)

    def read(self, name: str, most: int) -> bytes:
        """The bytes of a file, of which there are at most `most`."""
        return files.read_bytes(self.path / _inside(self.path, name), "data", most)

    def shown(self, name: str) -> str:
        """How a file is called in a message."""
        return files.shown(self.path / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *trouble: object) -> None:
        """Close what was opened."""


class ZipFiles(FolderFiles):
    """A zip archive."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._file = files.opened(path)
        except OSError as error:
            raise BadValue(f"data: {files.shown(path)} cannot be read: {error.strerror or error}.") from None
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._check(os.fstat(self._file.fileno()).st_size)
        except BaseException as error:
            self._file.close()
            if isinstance(error, zipfile.BadZipFile):
                raise BadValue(f"data: {files.shown(path)} cannot be read as a zip archive: {error}.") from None
            raise

    def _check(self, size: int) -> None:
        """Refuse an archive that says it unpacks to more than a machine holds."""
        listed = {item.filename: item.file_size for item in self._zip.infolist()}
        self._sizes = {name: size for name, size in listed.items() if name and not name.endswith("/")}
        check_unpacked(self.path, sum(self._sizes.values()), size, FOLDER)

    def names(self, endings: Sequence[str]) -> list[str]:
        """The files that end so, in order."""
        names = [name for name in sorted(self._sizes) if PurePosixPath(name).suffix.lower() in endings]
        return _visible(self.path, [_inside(self.path, name) for name in names])

    def read(self, name: str, most: int) -> bytes:
        """The bytes of a file, of which there are at most `most`."""
        if name not in self._sizes:
            raise BadValue(f"data: {self.shown(name)} is not in the archive.")
        if self._sizes[name] > most:
            raise BadValue(f"data: expected at most {most:,} bytes, {self.shown(name)} holds more.")
        with file_errors(self.path / name):
            try:
                with self._zip.open(name) as member:
                    return member.read(most + 1)
            except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError) as error:
                # RuntimeError: a password is needed, or the way of packing is unknown
                raise BadValue(f"data: {self.shown(name)} cannot be unpacked: {error}.") from None

    def __exit__(self, *trouble: object) -> None:
        """Close the archive."""
        self._zip.close()
        self._file.close()


class TarFiles(FolderFiles):
    """A tar archive, plain or packed by gzip, bzip2 or xz."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # A large archive goes to a file without a name; both are closed by __exit__.
        self._file = tempfile.SpooledTemporaryFile(SMALL)  # noqa: SIM115
        try:
            with files.opened(path) as packed:
                length = _unpack_tar(path, packed, self._file)
            self._tar = tarfile.open(fileobj=self._file, mode="r:")  # noqa: SIM115
            self._members = self._regular(length)
        except BaseException as error:
            self._file.close()
            if isinstance(error, (tarfile.TarError, lzma.LZMAError, zlib.error, OSError, EOFError)):
                raise BadValue(f"data: {files.shown(path)} cannot be read as a tar archive: {error}.") from None
            raise

    def _regular(self, length: int) -> dict[str, tarfile.TarInfo]:
        """The members that are regular files, by their names; `length`: of the plain archive, in bytes."""
        members = {}
        for number, member in enumerate(self._tar):
            if number >= 2 * MOST_FILES:  # folders and links count, too
                raise BadValue(f"data: {files.shown(self.path)} holds more than {2 * MOST_FILES:,} members.")
            if member.isreg():
                if not 0 <= member.size <= length:  # a header can state any size
                    raise BadValue(f"data: {self.shown(member.name)} states more bytes than the archive holds.")
                members[member.name] = member
        return members

    def names(self, endings: Sequence[str]) -> list[str]:
        """The files that end so, in order."""
        names = [name for name in sorted(self._members) if PurePosixPath(name).suffix.lower() in endings]
        return _visible(self.path, [_inside(self.path, name) for name in names])

    def read(self, name: str, most: int) -> bytes:
        """The bytes of a file, of which there are at most `most`."""
        if name not in self._members:
            raise BadValue(f"data: {self.shown(name)} is not in the archive.")
        if self._members[name].size > most:
            raise BadValue(f"data: expected at most {most:,} bytes, {self.shown(name)} holds more.")
        with file_errors(self.path / name):
            try:
                member = self._tar.extractfile(self._members[name])
                content = b"" if member is None else member.read()
            except (tarfile.TarError, OSError, EOFError) as error:
                raise BadValue(f"data: {self.shown(name)} cannot be unpacked: {error}.") from None
        if len(content) < self._members[name].size:
            raise BadValue(f"data: {self.shown(name)} is cut off. Is the archive complete?")
        return content

    def __exit__(self, *trouble: object) -> None:
        """Close the archive."""
        self._tar.close()
        self._file.close()


def _unpack_tar(path: Path, packed: BinaryIO, plain: IO[bytes]) -> int:
    """Write the plain archive, in which members can be sought; how many bytes it has."""
    begin = packed.read(6)
    packed.seek(0)
    unpacking: IO[bytes] = packed
    if begin.startswith(b"\x1f\x8b"):
        unpacking = gzip.GzipFile(fileobj=packed)  # type: ignore[assignment]
    elif begin.startswith(b"BZh"):
        unpacking = bz2.BZ2File(packed)
    elif begin == b"\xfd7zXZ\x00":
        unpacking = lzma.LZMAFile(packed)  # noqa: SIM115
    for piece in unpacked_pieces(path, unpacking, os.fstat(packed.fileno()).st_size, FOLDER):
        plain.write(piece)
    length = plain.tell()
    plain.seek(0)
    return length


def is_store(path: Path) -> bool:
    """Whether `opened` reads it: a folder, or a file that is named like an archive."""
    return path.is_dir() or path.suffix.lower() == ".zip" or bool(TAR.search(path.name))


@reads_file
def opened(path: Path) -> FolderFiles:
    """A folder, a zip archive or a tar archive."""
    if path.is_dir():
        return FolderFiles(path)
    if not path.exists():
        raise BadValue(f"data: there is no file or folder {files.shown(path)}.")
    return TarFiles(path) if TAR.search(path.name) else ZipFiles(path)


def _inside(path: Path, name: str) -> str:
    """A name that stays below the folder or the archive."""
    relative = PurePosixPath(name.replace("\\", "/"))
    if (
        relative.is_absolute()
        or ".." in relative.parts
        or not relative.parts
        or ":" in relative.parts[0]
        or "\0" in name
    ):
        raise BadValue(f"data: {files.shown(path)}: the name {name[:80]!r} points outside of it.")
    return name


def _visible(path: Path, names: list[str]) -> list[str]:
    """Names without hidden files, such as those that macOS puts into archives."""
    if len(names) > MOST_FILES:
        raise BadValue(f"data: {files.shown(path)} holds {len(names):,} files, expected at most {MOST_FILES:,}.")
    return [
        name
        for name in names
        if not any(component.startswith(".") or component == "__MACOSX" for component in PurePosixPath(name).parts)
    ]
