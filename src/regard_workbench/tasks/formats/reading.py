"""Files of text, plain or .gz, to lines. What is wrong with one is said with file, line and byte."""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from regard.errors import BadType, BadValue
from regard.support.arguments import described
from regard_workbench import files
from regard_workbench.tasks.formats.budget import unpacked_pieces
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.text.split_words import trimmed

Data = str | Path | Sequence[str | Path]  # what `data=` may be: a path, paths, or paths joined by commas


def wrong(path: Path, line: int | None, text: str) -> BadValue:
    """An error that says where in a file something is wrong."""
    return BadValue(f"{path}: {text}" if line is None else f"{path}:{line}: {text}")


def excerpt(text: str, most: int = 40) -> str:
    """The beginning of what was read, safe to print."""
    return ascii(text if len(text) <= most else text[:most] + "…")


def paths_of(data: Data) -> list[Path]:
    """The paths in `data`; a string is split at commas unless it is a path itself."""
    if isinstance(data, Path):
        paths: Sequence[str | Path] = [data]
    elif isinstance(data, str):
        paths = [data] if _exists(Path(data)) else [trimmed(path) for path in data.split(",")]
    else:
        paths = list(data) if isinstance(data, Sequence) else [data]
    for path in paths:
        if not isinstance(path, (str, Path)):
            raise BadType(f"data: expected a path or several, got {described(path)}.")
    if not paths or not all(str(path) for path in paths):
        raise BadValue(f"data: expected a path, got {data!r}.")
    return [_at_home(Path(path)) for path in paths]


def _exists(path: Path) -> bool:
    try:
        return _at_home(path).exists()
    except (OSError, ValueError):  # a name no file can have
        return False


def _at_home(path: Path) -> Path:
    """A path with `~` and `~user` replaced; as it is where there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def checked_encoding(encoding: str) -> str:
    """The name of a text encoding that Python knows."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError, TypeError, UnicodeError):
        raise BadValue(
            f"encoding: there is no text encoding {encoding!r}. Usual: utf-8, latin-1, cp1252, utf-16."
        ) from None
    return encoding


@reads_file
def read_text(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> str:
    """The text of a file. A byte-order mark is dropped, and lines that end in CR LF or in CR end in LF.

    `other`: how another encoding is named, as the reader can type it, for the error where this one does not fit; empty
    where none can be named.
    """
    raw = _raw(path)
    try:
        text = raw.decode(checked_encoding(encoding))
    except UnicodeDecodeError as error:
        raise _undecodable(path, raw, encoding, error.start, other) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@reads_file
def read_lines(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> list[str]:
    """The lines of a file, ended by LF, CR LF or CR. Other signs that some call line breaks are text like any other."""
    lines = read_text(path, encoding, other).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not any(trimmed(line) for line in lines):
        raise wrong(path, None, "is empty, or holds nothing but white space. Expected lines of text.")
    return lines


def _raw(path: Path) -> bytes:
    try:
        with files.opened(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                return _unpacked(path, file)
            if path.suffix == ".gz":
                raise wrong(path, None, "is not a gzip file, in spite of its name. Was its download interrupted?")
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unpacked(path: Path, file: BinaryIO) -> bytes:
    """What a gzip file holds, piece by piece."""
    packed = os.fstat(file.fileno()).st_size
    try:
        with gzip.GzipFile(fileobj=file) as unpacking:
            return b"".join(unpacked_pieces(path, unpacking, packed, "Unpack it yourself, and shorten it."))
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(path, None, f"cannot be unpacked: {error}. Is it complete?") from None


def _unreadable(path: Path, error: OSError) -> BadValue:
    name = str(path) if len(str(path)) <= files.LONGEST else str(path)[: files.LONGEST] + "…"
    if isinstance(error, FileNotFoundError):
        folder = path.parent
        names = sorted(sibling.name for sibling in folder.iterdir())[:8] if folder.is_dir() else []
        beside = [files.shown(sibling) for sibling in names]
        hint = f" In that folder: {', '.join(beside)}." if beside else ""
        return BadValue(f"data: there is no file {name!r}.{hint}")
    return BadValue(f"data: {name!r} cannot be read: {error.strerror or error}.")


def _undecodable(path: Path, raw: bytes, encoding: str, start: int, other: str) -> BadValue:
    line = raw.count(b"\n", 0, start) + 1
    begin = raw.rfind(b"\n", 0, start) + 1
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        other = other.replace("latin-1", "utf-16")
    return wrong(
        path,
        line,
        f"byte {start - begin + 1} of the line (0x{raw[start]:02x}, byte {start + 1} of the file) is not {encoding}. "
        + (f"Convert the file, or name its encoding, for instance {other}." if other else "Convert the file."),
    )
