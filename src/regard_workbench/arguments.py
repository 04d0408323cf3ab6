"""What the functions of the workbench are given, as the commands take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from regard.observation.seen import Seen
from regard.support.argument_types import ArgumentTypes

Files = str | Path | Sequence[str | Path]


@runtime_checkable
class Trained(Protocol):
    """What `regard.train` returned: a `Result`, whose module needs packages that the light install does not bring."""

    @property
    def folder(self) -> Path: ...


@cache
def types_of(verb: Callable[..., Any]) -> ArgumentTypes:
    """The types that a function of the workbench takes."""
    classes = {"Result": (Trained, "what regard.train returned"), "Seen": (Seen, "what regard.observe saw")}
    return ArgumentTypes(verb, classes)


def several(entries: Any) -> tuple[Any, ...]:
    """One thing, several or none, as several. A text is one thing."""
    if entries is None:
        return ()
    if isinstance(entries, Sequence) and not isinstance(entries, str):
        return tuple(entries)
    return (entries,)


def folder_of(run: str | Path | Trained) -> str | Path:
    """The folder of a run that was given as a path or as the result of its training."""
    return run.folder if isinstance(run, Trained) else run


def joined(files: Files | None) -> str | None:
    """Files as the command line takes them."""
    names = several(files)
    return ",".join(map(str, names)) if names else None


def named_settings(named: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, without those that were not given; paths and devices as text."""
    return {
        name: str(value) if isinstance(value, (Path, torch.device)) else value
        for name, value in [*named.items(), *_dotted(more)]
        if value is not None
    }


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def load_plugins(use: Files | None) -> None:
    """Import the files of `use`."""
    from regard_workbench.plugins import load

    load(several(use))
