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
from regard.training import changes, durable, lock, seal
from regard.training.config import Config, from_yaml, to_yaml
from regard.training.place import Place

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
        self.place: Place | None = None  # while this process is alone in it

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def begin(self, config: Config, device: str = "") -> None:
        """Write what a new run begins with; refuse a folder that is taken. This process must be alone in it."""
        self.refuse_taken()
        with durable.reporting(self.path):
            for folder in (self.checkpoints, self.path / "figures"):
                durable.make_folder(folder)
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
        """Raise if a run was begun here, or if parts of one are left whose settings are gone."""
        if self.exists:
            raise BadValue(
                f"out: {self.path} already holds a run. Continue it with --resume auto, or choose another folder."
            )
        left = [path.name for path in sorted(self.checkpoints.glob("step-*"))]
        if self.metrics.is_file() and self.metrics.stat().st_size:
            left.append(self.metrics.name)
        if left:
            raise BadValue(
                f"out: {self.path} holds {left[0]} of a run without its config.yaml; a new run would be mixed with it. "
                "Restore config.yaml from a copy, or choose another folder."
            )

    def note(self, config: Config) -> None:
        """Write the settings the run begins with, and their checksum."""
        hint = "To change a setting: regard train --resume this folder --some-setting VALUE"
        durable.replace(self.path / "config.yaml", seal.yaml_bytes(to_yaml(config), hint))

    def begun(self) -> dict[str, Any]:
        """The settings the run began with: as they were written, but not checked yet; `Changed` if they are not."""
        if not self.exists:
            raise BadValue(f"{self.path}: there is no run here (no config.yaml). Pass the folder of a run.")
        path = self.path / "config.yaml"
        try:
            seal.check_yaml(durable.read(path), path)
        except OSError as trouble:
            raise BadValue(f"{path}: it cannot be read: {trouble.strerror or trouble}.") from None
        except seal.Changed as changed:
            raise seal.Changed(
                f"{changed} Restore it from a copy. To change a setting: regard train --resume {self.path} --SETTING "
                "VALUE. If you put back by hand what it said, remove its last line."
            ) from None
        return from_yaml(path)

    def settings(self, step: int | None = None) -> dict[str, Any]:
        """The settings in force, by dotted name: now, or when the run stood at a step."""
        found = changes.read(self.path)
        return changes.applied(self.begun(), found if step is None else changes.until(found, step))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other process out of the folder, which is made if it is not there; `lock.Held` if one is in it."""
        self.check_place()
        with durable.reporting(self.path):
            durable.make_folder(self.path)
        with lock.alone(self.path):
            self.place = Place(self.path)
            try:
                yield
            finally:
                self.place.close()
                self.place = None

    def check_here(self, last: str = "") -> None:
        """Raise if the folder was moved or deleted since this process is alone in it."""
        if self.place is not None:
            self.place.check(last)


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
