"""A run folder as a tar archive in memory, for a worker that does not share a file system with the engine."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path, PurePosixPath

from regard.errors import BadValue
from regard_workbench.training.run_folder import durable

LEFT_OUT = (".lock", ".probe")  # they belong to the machine they are on


def pack(folder: Path) -> bytes:
    """Archive every regular file and folder in a folder."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.name not in LEFT_OUT and not path.is_symlink() and (path.is_file() or path.is_dir()):
                tar.add(path, path.relative_to(folder).as_posix(), recursive=False)
    return into.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Replace a folder by the contents of an archive, atomically; nothing is written outside of the folder."""
    unpacked = folder.with_name(f".part-{folder.name}")
    with durable.reporting(folder):
        durable.remove(unpacked)
        unpacked.mkdir(parents=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
                members = tar.getmembers()
                for member in members:
                    _check_member(member)
                tar.extractall(unpacked, members, filter="data")
            durable.remove(folder)
            os.rename(unpacked, folder)
        except tarfile.TarError as trouble:
            raise BadValue(f"engine: the archive from a worker is not a run folder: {trouble}.") from None
        finally:
            durable.remove(unpacked)


def _check_member(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    inside = not path.is_absolute() and ".." not in path.parts and "\\" not in member.name
    if not inside or not (member.isfile() or member.isdir()):
        raise BadValue(f"engine: the archive from a worker holds {member.name!r}, which is not a file of a run folder.")
