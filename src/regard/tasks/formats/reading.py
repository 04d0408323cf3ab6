"""Files of text, plain or .gz, to lines. What is wrong with one is said with file, line and byte."""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from regard.core import files
from regard.core.arguments import described
from regard.errors import BadType, BadValue

Data = str | Path | Sequence[str | Path]  # what `data=` may be: a path, paths, or paths joined by commas

# Bytes that a .gz may unpack to: text shrinks to a tenth or so; what shrinks to 1/200 is made to fill a machine.
MOST_UNPACKED, SMALL, RATIO = 4 * 2**30, 64 * 2**20, 200


def wrong(path: Path, line: int | None, text: str) -> BadValue:
    """An error that says where in a file something is wrong."""
    return BadValue(f"{path}: {text}" if line is None else f"{path}:{line}: {text}")


def excerpt(text: str, most: int = 40) -> str:
    """The beginning of what was read, safe to print."""
    return ascii(text if len(text) <= most else text[:most] + "…")


def paths_of(data: Data) -> list[Path]:
    """The paths in `data`; a string is split at commas unless it is a path itself."""
    if isinstance(data, Path):
        given: Sequence[str | Path] = [data]
    elif isinstance(data, str):
        given = [data] if _exists(Path(data)) else [part.strip() for part in data.split(",")]
    else:
        given = list(data) if isinstance(data, Sequence) else [data]
    for part in given:
        if not isinstance(part, (str, Path)):
            raise BadType(f"data: expected a path or several, got {described(part)}.")
    if not given or not all(str(part) for part in given):
        raise BadValue(f"data: expected a path, got {data!r}.")
    return [Path(part).expanduser() for part in given]


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # a name no file can have; no home to expand to
        return False


def checked_encoding(encoding: str) -> str:
    """The name of a text encoding that Python knows."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError, TypeError, UnicodeError):
        raise BadValue(
            f"encoding: there is no text encoding {encoding!r}. Usual: utf-8, latin-1, cp1252, utf-16."
        ) from None
    return encoding


def read_text(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> str:
    """The text of a file. A byte-order mark is dropped, and lines that end in CR LF end in LF.

    `other`: how another encoding is named, as the reader can type it, for the error where this one does not fit.
    """
    raw = _raw(path)
    try:
        text = raw.decode(checked_encoding(encoding))
    except UnicodeDecodeError as error:
        raise _undecodable(path, raw, encoding, error.start, other) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def read_lines(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> list[str]:
    """The lines of a file, at "\\n" alone: other signs that some call a line break are text like any other."""
    lines = read_text(path, encoding, other).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not any(line.strip() for line in lines):
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
                raise wrong(
                    path, None, "is not a gzip file, in spite of its name. Was its download interrupted?"
                )
            return file.read()
    except MemoryError:
        raise wrong(path, None, "does not fit into memory. Split it, or take a part of it.") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def unpacked_limit(packed: int) -> int:
    """The most bytes that a file of so many packed bytes may hold: a small one can unpack to more than fits."""
    return min(MOST_UNPACKED, max(SMALL, RATIO * packed))


def _unpacked(path: Path, file: BinaryIO) -> bytes:
    """What a gzip file holds, piece by piece."""
    most = unpacked_limit(os.fstat(file.fileno()).st_size)
    found = bytearray()
    try:
        with gzip.GzipFile(fileobj=file) as unpacking:
            while piece := unpacking.read(files.PIECE):
                found += piece
                if len(found) > most:
                    raise wrong(
                        path,
                        None,
                        f"unpacks to more than {most / 2**20:,.0f} MiB. Unpack it yourself, and shorten it.",
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(path, None, f"cannot be unpacked: {error}. Is it complete?") from None
    return bytes(found)


def _unreadable(path: Path, error: OSError) -> BadValue:
    name = str(path) if len(str(path)) <= files.LONGEST else str(path)[: files.LONGEST] + "…"
    if isinstance(error, FileNotFoundError):
        folder = path.parent
        names = sorted(other.name for other in folder.iterdir())[:8] if folder.is_dir() else []
        beside = [files.shown(other) for other in names]
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
        f"Convert the file, or name its encoding, for instance {other}.",
    )
