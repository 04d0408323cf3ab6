"""The error for a folder without a model: what it must hold, and how to get one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from regard.errors import BadValue
from regard_workbench.training.run_folder.folder import HOME

_HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")


def no_model(where: str, argument: str = "RUN") -> BadValue:
    """The error for a path that is neither a run nor the folder of a Hugging Face model, nor a name in its cache."""
    path = Path(where)
    if path.is_file():
        return BadValue(f"{argument}: {where!r} is a file. Give its folder.")
    inside = sorted(child.name for child in (path / "runs").iterdir()) if (path / "runs").is_dir() else []
    if inside:
        return BadValue(f"{argument}: {where!r} is a comparison. Choose one of its runs: {path / 'runs' / inside[0]}")
    if path.is_dir():
        return BadValue(
            f"{argument}: the folder {where!r} has neither a config.yaml (a run of regard) nor a config.json (a "
            "Hugging Face model). `regard train dates` makes a run."
        )
    return BadValue(f"{argument}: the folder {where!r} does not exist. {_how_to_get(where)}")


def _how_to_get(where: str) -> str:
    train = "`regard train dates` makes a run."
    if not _HUB_NAME.fullmatch(where) or Path(where).parts[0] == HOME:
        return train
    return (
        "It is not in the Hub's cache either, and nothing is downloaded automatically. For a model of the Hugging Face "
        f"hub: `hf download {shlex.quote(where)}`, then the same command again. {train}"
    )
