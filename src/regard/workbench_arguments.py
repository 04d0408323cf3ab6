"""What the functions of the workbench are given, as the commands take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import BadType

Number = TypeVar("Number", int, float)
Files = str | Path | Sequence[str | Path]


def several(numbers: Number | Sequence[Number]) -> tuple[Number, ...]:
    """One number or several, as several."""
    return tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)


def folder_of(run: object) -> str | Path:
    """The folder of a run that was given as a path or as the result of its training."""
    found = getattr(run, "folder", run)
    if not isinstance(found, str | Path):
        raise BadType(
            f"run: expected the folder of a run, or what regard.train returned, got {type(run).__name__}."
        )
    return found


def joined(files: Files | None) -> str | None:
    """Files as the command line takes them."""
    if files is None or isinstance(files, str):
        return files
    return ",".join(map(str, [files] if isinstance(files, Path) else files))


def named_settings(named: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, without those that were not given."""
    return {name: value for name, value in [*named.items(), *_dotted(more)] if value is not None}


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def load_plugins(use: Files) -> None:
    """Import the files of `use`."""
    from regard.plugins import load

    load([use] if isinstance(use, str | Path) else use)
