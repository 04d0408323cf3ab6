"""The run folder: where a run keeps its settings, surroundings, metrics, checkpoints and figures.

config.yaml   env.json   metrics.jsonl   checkpoints/step-00000120/model.safetensors   figures/

and `changes.json`, where a resume changed a setting.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard.training import changes, durable
from regard.training.config import Config, from_yaml, to_yaml

HOME = "runs"  # where runs go when nothing else is said
LONGEST_NAME = 100
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_FORBIDDEN = set('/\\<>:"|?*')


def checked_name(name: str) -> str:
    """A run name that is one plain folder name on every system, and so cannot leave the folder that holds it."""
    why = ""
    if not name or not name.strip():
        why = "is empty"
    elif len(name) > LONGEST_NAME or len(name.encode("utf-8", "surrogatepass")) > 2 * LONGEST_NAME:
        why = f"is longer than {LONGEST_NAME} letters"
    elif any(letter in _FORBIDDEN for letter in name):
        why = 'holds one of / \\ < > : " | ? *'
    elif not name.isprintable():
        why = "holds a character that cannot be printed"
    elif name[0] in ".-~ " or name[-1] in ". ":
        why = "begins with . - ~ or a space, or ends with . or a space"
    elif _RESERVED.fullmatch(name):
        why = "is the name of a device on some systems"
    if why:
        raise BadValue(f"name: {name[:40]!r} {why}. Use letters, digits, - and _, for instance 'dates-3'.")
    return name


def locate(out: str | None, name: str | None, fallback: str) -> Path:
    """The folder of a run: `out` itself, or `name` inside it."""
    if out is not None and "\0" in out:
        raise BadValue("out: a path cannot hold a NUL character.")
    if out is not None and name is None:
        return Path(out)
    parent = Path(out or HOME)
    found = parent / checked_name(name or fallback)
    if found.is_symlink() and parent.resolve() not in found.resolve().parents:
        raise BadValue(f"name: {found} is a link that leads out of {parent}. Choose another name.")
    return found


def free_name(start: str) -> str:
    """A name for a run nobody named: what it learns, and when."""
    plain = re.sub(r"[^\w-]+", "-", start).strip("-_")[:60] or "run"
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


class RunFolder:
    """A run on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def begin(self, config: Config, device: str = "") -> None:
        """Make the folder of a new run; refuse one that is taken."""
        self.refuse_taken()
        self.check_place()
        with durable.reporting(self.path):
            for folder in (self.path, self.checkpoints, self.path / "figures"):
                folder.mkdir(parents=True, exist_ok=True)
        facts = json.dumps(surroundings(device), indent=1, ensure_ascii=False).encode()
        durable.replace(self.path / "env.json", facts)
        self.note(config)  # last: it marks the folder as a run

    def check_place(self) -> None:
        """Raise where no folder can be made because a file stands in its place or above it."""
        if self.path.exists() and not self.path.is_dir():
            raise BadValue(f"out: {self.path} is a file, not a folder.")
        with durable.reporting(self.path):
            if any(place.is_file() for place in self.path.parents):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def refuse_taken(self) -> None:
        """Raise if a run was begun here."""
        if self.exists:
            raise BadValue(
                f"out: {self.path} already holds a run. Continue it with --resume auto, or choose another folder."
            )

    def note(self, config: Config) -> None:
        """Write the settings the run begins with."""
        durable.replace(self.path / "config.yaml", to_yaml(config).encode())

    def begun(self) -> dict[str, Any]:
        """The settings the run began with, not checked yet."""
        if not self.exists:
            raise BadValue(f"{self.path}: there is no run here (no config.yaml). Pass the folder of a run.")
        return from_yaml(self.path / "config.yaml")

    def settings(self, step: int | None = None) -> dict[str, Any]:
        """The settings in force, by dotted name: now, or when the run stood at a step."""
        found = changes.read(self.path)
        return changes.applied(self.begun(), found if step is None else changes.until(found, step))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second process from training in the same folder; the lock ends with the process, however it ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        path = self.path / ".lock"
        with durable.reporting(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadValue(f"out: another process is training in {self.path} right now.") from None
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(handle)


def surroundings(device: str = "") -> dict[str, Any]:
    """What a run depends on besides its settings."""
    packages = ("torch", "numpy", "accelerate", "safetensors", "tokenizers")

    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    import torch

    import regard

    return {
        "python": platform.python_version(),
        "regard": regard.__version__,
        "packages": {package: of(package) for package in packages},
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),  # of the run, as torchrun tells them
        "device": device,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
