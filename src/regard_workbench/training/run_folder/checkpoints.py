"""Checkpoints that exist completely or not at all: safetensors and JSON, fsynced, renamed, with SHA-256 checksums.

    checkpoints/step-00000120/  model.safetensors  optimizer.safetensors  random.safetensors  state.json  manifest.json

A folder that does not match its manifest is damaged: the one before it is loaded instead, and the user is told. Only
the newest complete checkpoint records which one is the best, so there is no second record that could disagree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard.errors import BadValue, RegardError
from regard_workbench.files import NotAFile
from regard_workbench.training.config.retention import Keep
from regard_workbench.training.run_folder import durable, schema

FORMAT = 2
# Modules that had other names in format 1; the names are translated when such a checkpoint is read.
_RENAMED = re.compile(r"^(exit|entrance|target_entrance)(?=\.)")
_NEW_NAMES = {"exit": "head", "entrance": "embedding", "target_entrance": "target_embedding"}
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 16  # bytes
_NAME = re.compile(r"step-(\d{8,18})")
_FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")


class Damaged(RegardError, ValueError):
    """A checkpoint differs from what was written."""


# What reading raises for contents that were not written like this.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: everything a run needs to continue as if it had never stopped."""

    name: str
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    state: dict[str, Any]
    sha256: str = ""  # of the weights file; empty before it is written

    @property
    def step(self) -> int:
        """The number of optimiser steps taken."""
        return int(self.state["progress"]["step"])


def name_of(step: int) -> str:
    """The folder name of the checkpoint of a step."""
    return f"step-{step:08d}"


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; it becomes visible once all of it is on disk."""
    state = json.dumps(checkpoint.state, ensure_ascii=False).encode()
    packed = map(_packed, (checkpoint.weights, checkpoint.optimizer, checkpoint.random))
    files = dict(zip(_FILES, (*packed, state), strict=True))
    sums = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    files[MANIFEST] = json.dumps({"format": FORMAT, "files": sums}, indent=1).encode()
    target = folder / checkpoint.name
    durable.write_folder(target, files)
    return target


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; raise `Damaged` if it differs from what was written.

    A read that failed proves nothing, so it is no damage: `durable.ReadFailed`.
    """
    try:
        manifest = json.loads(durable.read(path / MANIFEST, LARGEST_MANIFEST))
        if manifest["format"] not in (1, FORMAT):
            raise Damaged(
                f"{path} has format {manifest['format']!r}, of another version of regard; this one reads 1 and {FORMAT}"
            )
        contents: dict[str, bytes] = {}
        for name in _FILES:
            expected = manifest["files"][name]
            contents[name] = durable.read(path / name, int(expected["bytes"]))  # allocate no more than was written
            if hashlib.sha256(contents[name]).hexdigest() != expected["sha256"]:
                raise Damaged(f"{path / name} is not what was written (its SHA-256 differs)")
        state = schema.check_state(json.loads(contents.pop("state.json")), step_of(path))
        weights, optimizer, random = (tensors_from_bytes(data) for data in contents.values())
    except durable.ReadFailed as failed:
        raise durable.ReadFailed(f"{failed} To go on without this checkpoint, move {path} away.") from failed
    except FileNotFoundError as missing:
        raise Damaged(f"{missing.filename} is missing") from None
    except Damaged:
        raise
    except BadValue as error:
        raise Damaged(f"{path}: {error}") from None
    except NotAFile as other:
        raise Damaged(f"{path} cannot be read: {other.strerror}") from None
    except _DAMAGE as error:
        raise Damaged(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    if manifest["format"] == 1:
        weights, optimizer = _renamed(weights), _renamed(optimizer)
    sha256 = str(manifest["files"][_FILES[0]]["sha256"])
    return Checkpoint(name_of(step_of(path)), weights, optimizer, random, state, sha256)


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a checkpoint of format 1 to the current names."""
    return {_RENAMED.sub(lambda old: _NEW_NAMES[old[1]], name): tensor for name, tensor in tensors.items()}


def paths(folder: Path) -> list[Path]:
    """The folders named like checkpoints, the newest first, not verified.

    This includes one that a killed process was replacing, until `durable.restore` renames it back.
    """
    with durable.reading(folder):
        entries = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    named: dict[int, Path] = {}
    for path in entries:  # the names with the prefix come last
        if match := _NAME.fullmatch(path.name.removeprefix(durable.OLD)):
            named.setdefault(int(match[1]), path)
    return [named[step] for step in sorted(named, reverse=True)]


def load_newest(folder: Path, tell: Callable[[str], None]) -> tuple[Checkpoint | None, list[Path]]:
    """Load the newest complete checkpoint; also return the newer ones, which are damaged."""
    damaged: list[Path] = []
    for path in paths(folder):
        try:
            return load(path), damaged
        except Damaged as error:
            damaged.append(path)
            tell(f"The checkpoint {path.name} is damaged: {error}. Taking the one before it.")
    if damaged:
        tell("All checkpoints are damaged.")
    return None, damaged


def load_best(folder: Path, newest: Checkpoint, tell: Callable[[str], None]) -> Checkpoint:
    """Load the checkpoint that `newest` records as the best; return `newest` if that one is damaged."""
    step = newest.state["progress"].get("best_step")
    if step is None or step == newest.step:  # nothing was validated yet, or it is the newest
        return newest
    try:
        return load(folder / name_of(step))
    except Damaged as error:
        tell(f"The best checkpoint is damaged: {error}. Taking the newest complete one.")
        return newest


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint folder."""
    return int(path.name.removeprefix(durable.OLD).removeprefix("step-"))


def keep(folder: Path, last: str, best: str | None, rule: Keep = Keep()) -> None:  # noqa: B008 (it is frozen)
    """Delete the checkpoints that are not the last, not the best and not kept by the rule."""
    kept = {best, last, *map(name_of, rule.chosen([step_of(path) for path in paths(folder)]))}
    with durable.reporting(folder):
        (folder / "index.json").unlink(missing_ok=True)  # of earlier versions; it could name another best checkpoint
        for path in paths(folder):
            if path.name not in kept:
                _discard(path)


def set_aside(folder: Path, paths: list[Path]) -> None:
    """Rename checkpoints that the run does not continue from, so that they are kept but not used."""
    with durable.reporting(folder):
        for path in paths:
            target = folder / f"set-aside-{path.name}"
            durable.remove(target)
            os.rename(path, target)
        if paths:
            durable.sync_folder(folder)


def _discard(path: Path) -> None:
    """Delete a checkpoint; rename it first, so that a kill in between leaves nothing that looks damaged."""
    hidden = path.with_name(f".gone-{path.name}")
    durable.remove(hidden)
    os.rename(path, hidden)
    durable.sync_folder(path.parent)
    with suppress(FileNotFoundError):
        durable.remove(hidden)


def _packed(tensors: dict[str, Tensor]) -> bytes:
    data: bytes = tensors_to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data
