"""The error for a folder without a model: what it must hold, and how to get one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from regard.errors import BadValue
from regard.training.run_folder.folder import HOME

_HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")


def no_model(where: str) -> BadValue:
    """The error for a path that is neither a run nor the folder of a Hugging Face model."""
    path = Path(where)
    if path.is_file():
        return BadValue(f"RUN: {where!r} is a file. Give its folder.")
    inside = sorted(child.name for child in (path / "runs").iterdir()) if (path / "runs").is_dir() else []
    if inside:
        return BadValue(
            f"RUN: {where!r} is a comparison. Choose one of its runs: {path / 'runs' / inside[0]}"
        )
    if path.is_dir():
        return BadValue(
            f"RUN: the folder {where!r} has neither a config.yaml (a run of regard) nor a config.json (a Hugging Face "
            "model). `regard train dates` makes a run."
        )
    return BadValue(f"RUN: the folder {where!r} does not exist. {_how_to_get(where)}")


def _how_to_get(where: str) -> str:
    train = "`regard train dates` makes a run."
    if not _HUB_NAME.fullmatch(where) or Path(where).parts[0] == HOME:
        return train
    kept = _downloaded(where)
    if kept is not None:
        return f"A downloaded copy of that model is here: regard view {shlex.quote(str(kept))}"
    folder = shlex.quote(where.rpartition("/")[2])
    return (
        "Expected a local folder; nothing is downloaded automatically. For a model of the Hugging Face hub: "
        f"`hf download {shlex.quote(where)} --local-dir {folder}`, then `regard view {folder}`. {train}"
    )


def _downloaded(name: str) -> Path | None:
    """The folder of a model of this name in the hub's local cache."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return None
    kept = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots"
    whole = [config.parent for config in sorted(kept.glob("*/config.json"))]
    return max(whole, key=lambda folder: folder.stat().st_mtime) if whole else None
