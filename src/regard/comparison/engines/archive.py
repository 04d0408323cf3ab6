"""A run folder as bytes, for a worker that shares no disk with whoever asked for the run."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path, PurePosixPath

from regard.errors import BadValue
from regard.training.run_folder import durable

LEFT_BEHIND = (".lock", ".probe")  # they speak of the place they are in


def pack(folder: Path) -> bytes:
    """Everything in a folder that is a plain file or a folder."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.name not in LEFT_BEHIND and not path.is_symlink() and (path.is_file() or path.is_dir()):
                tar.add(path, path.relative_to(folder).as_posix(), recursive=False)
    return into.getvalue()


def unpack(parcel: bytes, folder: Path) -> None:
    """Put what was packed in the place of a folder, whole or not at all; nothing lands outside of it."""
    part = folder.with_name(f".part-{folder.name}")
    with durable.reporting(folder):
        durable.remove(part)
        part.mkdir(parents=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(parcel), mode="r:") as tar:
                members = tar.getmembers()
                for member in members:
                    _refuse_strange(member)
                tar.extractall(part, members, filter="data")
            durable.remove(folder)
            os.rename(part, folder)
        except tarfile.TarError as trouble:
            raise BadValue(f"engine: what a worker sent back is not a run folder: {trouble}.") from None
        finally:
            durable.remove(part)


def _refuse_strange(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    inside = not path.is_absolute() and ".." not in path.parts and "\\" not in member.name
    if not inside or not (member.isfile() or member.isdir()):
        raise BadValue(
            f"engine: what a worker sent back holds {member.name!r}, which is not a file of a run folder."
        )
