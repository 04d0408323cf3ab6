"""Checkpoints that are whole or not there: safetensors and JSON, fsynced, renamed into place, each file's SHA-256 kept.

    checkpoints/step-00000120/  model.safetensors  optimizer.safetensors  random.safetensors  state.json  manifest.json
    checkpoints/index.json      which is the last and which the best; a hint, found again by looking when it is lost

A folder that does not match its manifest is damaged: it is never loaded, the one before it is, and the user is told.
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

from regard.errors import RegardError
from regard.training import durable
from regard.training.retention import Keep

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")


class Damaged(RegardError, ValueError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: everything a run needs to go on as if it had never stopped."""

    name: str
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    state: dict[str, Any]

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
    files = {
        "model.safetensors": _packed(checkpoint.weights),
        "optimizer.safetensors": _packed(checkpoint.optimizer),
        "random.safetensors": _packed(checkpoint.random),
        "state.json": state,
    }
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
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            raise Damaged(f"{path} has format {manifest['format']!r}; this version reads {FORMAT}")
        contents: dict[str, bytes] = {}
        for name in ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"):
            contents[name] = (path / name).read_bytes()
            if hashlib.sha256(contents[name]).hexdigest() != manifest["files"][name]["sha256"]:
                raise Damaged(f"{path / name} is not what was written (its SHA-256 differs)")
        state = json.loads(contents.pop("state.json"))
        weights, optimizer, random = (tensors_from_bytes(data) for data in contents.values())
    except FileNotFoundError as missing:
        raise Damaged(f"{missing.filename} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as trouble:
        if isinstance(trouble, Damaged):
            raise
        raise Damaged(f"{path} cannot be read: {type(trouble).__name__}: {trouble}") from None
    return Checkpoint(path.name, weights, optimizer, random, state)


def found(folder: Path) -> list[Path]:
    """Every checkpoint by its looks, the newest first."""
    if not folder.is_dir():
        return []
    named = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, reverse=True)]


def load_newest(folder: Path, tell: Callable[[str], None]) -> tuple[Checkpoint | None, list[Path]]:
    """The newest checkpoint that is whole, and the damaged ones that stood before it."""
    damaged: list[Path] = []
    for path in found(folder):
        try:
            checkpoint = load(path)
        except Damaged as trouble:
            damaged.append(path)
            tell(f"The checkpoint {path.name} is damaged: {trouble}. Taking the one before it.")
            continue
        return checkpoint, damaged
    if damaged:
        tell("No checkpoint here is whole.")
    return None, damaged


def load_for_use(folder: Path, tell: Callable[[str], None]) -> Checkpoint:
    """The best checkpoint, or the newest whole one where the best is damaged or unknown."""
    best = index(folder).get("best")
    if isinstance(best, str) and _NAME.fullmatch(best):
        try:
            return load(folder / best)
        except Damaged as trouble:
            tell(f"The best checkpoint is damaged: {trouble}. Taking the newest whole one.")
    checkpoint, _ = load_newest(folder, tell)
    if checkpoint is None:
        raise Damaged(f"{folder}: there is no checkpoint that can be read.")
    return checkpoint


def index(folder: Path) -> dict[str, Any]:
    """Which checkpoint is the last and which the best, as far as it is known."""
    try:
        content = json.loads((folder / "index.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder, by its name."""
    return int(path.name.removeprefix("step-"))


def keep(folder: Path, last: str, best: str | None, rule: Keep = Keep()) -> None:  # noqa: B008 (it is frozen)
    """Note the last and the best; delete every other checkpoint that the rule does not keep."""
    durable.replace(folder / "index.json", json.dumps({"last": last, "best": best}).encode())
    kept = {best, last, *map(name_of, rule.chosen([step_of(path) for path in found(folder)]))}
    with durable.reporting(folder):
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
        durable.sync_folder(folder)


def _discard(path: Path) -> None:
    """Delete a checkpoint; first hide it, so that a kill in the middle leaves nothing that looks damaged."""
    hidden = path.with_name(f".gone-{path.name}")
    durable.remove(hidden)
    os.rename(path, hidden)
    with suppress(FileNotFoundError):
        durable.remove(hidden)


def _packed(tensors: dict[str, Tensor]) -> bytes:
    data: bytes = tensors_to_bytes(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    )
    return data
