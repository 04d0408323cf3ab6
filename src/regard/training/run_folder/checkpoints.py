"""Checkpoints that are whole or not there: safetensors and JSON, fsynced, renamed into place, each file's SHA-256 kept.

    checkpoints/step-00000120/  model.safetensors  optimizer.safetensors  random.safetensors  state.json  manifest.json

A folder that does not match its manifest is damaged: it is never loaded, the one before it is, and the user is told.
Which checkpoint is the best, the newest whole one says; nothing else is asked, so nothing can disagree with it.
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
from regard.training.config.retention import Keep
from regard.training.run_folder import durable, schema

FORMAT = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 16  # bytes
_NAME = re.compile(r"step-(\d{8,18})")
_FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")


class Damaged(RegardError, ValueError):
    """A checkpoint that is not what was written."""


UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    SafetensorError,
)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: everything a run needs to go on as if it had never stopped."""

    name: str
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    state: dict[str, Any]
    sha256: str = ""  # of the weights, once they were written

    @property
    def step(self) -> int:
        """How many optimiser steps were taken."""
        return int(self.state["progress"]["step"])


def name_of(step: int) -> str:
    """The folder name of a step."""
    return f"step-{step:08d}"


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; it becomes visible only when the disk has all of it."""
    state = json.dumps(checkpoint.state, ensure_ascii=False).encode()
    packed = map(_packed, (checkpoint.weights, checkpoint.optimizer, checkpoint.random))
    files = dict(zip(_FILES, (*packed, state), strict=True))
    sums = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()
    }
    files[MANIFEST] = json.dumps({"format": FORMAT, "files": sums}, indent=1).encode()
    target = folder / checkpoint.name
    durable.write_folder(target, files)
    return target


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it; `Damaged` if it is not what was written."""
    try:
        manifest = json.loads(durable.read(path / MANIFEST, LARGEST_MANIFEST))
        if manifest["format"] != FORMAT:
            raise Damaged(f"{path} has format {manifest['format']!r}; this version reads {FORMAT}")
        contents: dict[str, bytes] = {}
        for name in _FILES:
            told = manifest["files"][name]
            contents[name] = durable.read(path / name, int(told["bytes"]))  # no more memory than was written
            if hashlib.sha256(contents[name]).hexdigest() != told["sha256"]:
                raise Damaged(f"{path / name} is not what was written (its SHA-256 differs)")
        state = schema.of_state(json.loads(contents.pop("state.json")), step_of(path))
        weights, optimizer, random = (tensors_from_bytes(data) for data in contents.values())
    except FileNotFoundError as missing:
        raise Damaged(f"{missing.filename} is missing") from None
    except Damaged:
        raise
    except BadValue as misfit:
        raise Damaged(f"{path}: {misfit}") from None
    except UNREADABLE as trouble:
        raise Damaged(f"{path} cannot be read: {type(trouble).__name__}: {trouble}") from None
    sha256 = str(manifest["files"][_FILES[0]]["sha256"])
    return Checkpoint(name_of(step_of(path)), weights, optimizer, random, state, sha256)


def found(folder: Path) -> list[Path]:
    """Every checkpoint by its looks, the newest first.

    One that a process was about to replace when it died counts until it is put back (`durable.restore`).
    """
    if not folder.is_dir():
        return []
    named = {int(match[1]): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}
    for path in folder.glob(f"{durable.OLD}*"):
        if match := _NAME.fullmatch(path.name.removeprefix(durable.OLD)):
            named.setdefault(int(match[1]), path)
    return [named[step] for step in sorted(named, reverse=True)]


def load_newest(folder: Path, tell: Callable[[str], None]) -> tuple[Checkpoint | None, list[Path]]:
    """The newest checkpoint that is whole, and the damaged ones that stood before it."""
    damaged: list[Path] = []
    for path in found(folder):
        try:
            return load(path), damaged
        except Damaged as trouble:
            damaged.append(path)
            tell(f"The checkpoint {path.name} is damaged: {trouble}. Taking the one before it.")
    if damaged:
        tell("No checkpoint here is whole.")
    return None, damaged


def load_best(folder: Path, newest: Checkpoint, tell: Callable[[str], None]) -> Checkpoint:
    """The checkpoint that the newest whole one calls the best; the newest itself where that one is damaged."""
    step = newest.state["progress"].get("best_step")
    if step is None or step == newest.step:  # nothing was validated yet, or the newest is it
        return newest
    try:
        return load(folder / name_of(step))
    except Damaged as trouble:
        tell(f"The best checkpoint is damaged: {trouble}. Taking the newest whole one.")
        return newest


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder, by its name."""
    return int(path.name.removeprefix(durable.OLD).removeprefix("step-"))


def keep(folder: Path, last: str, best: str | None, rule: Keep = Keep()) -> None:  # noqa: B008 (it is frozen)
    """Delete every checkpoint that is neither the last nor the best nor kept by the rule."""
    kept = {best, last, *map(name_of, rule.chosen([step_of(path) for path in found(folder)]))}
    with durable.reporting(folder):
        (folder / "index.json").unlink(missing_ok=True)  # of earlier versions; it could name another best
        for path in found(folder):
            if path.name not in kept:
                _discard(path)


def set_aside(folder: Path, paths: list[Path]) -> None:
    """Move checkpoints a run does not go on from out of its way, without losing them."""
    with durable.reporting(folder):
        for path in paths:
            target = folder / f"set-aside-{path.name}"
            durable.remove(target)
            os.rename(path, target)
        if paths:
            durable.sync_folder(folder)


def _discard(path: Path) -> None:
    """Delete a checkpoint; first hide it, so that a kill in the middle leaves nothing that looks damaged."""
    hidden = path.with_name(f".gone-{path.name}")
    durable.remove(hidden)
    os.rename(path, hidden)
    durable.sync_folder(path.parent)
    with suppress(FileNotFoundError):
        durable.remove(hidden)


def _packed(tensors: dict[str, Tensor]) -> bytes:
    data: bytes = tensors_to_bytes(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    )
    return data
