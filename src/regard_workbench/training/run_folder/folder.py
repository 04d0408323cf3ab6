"""The run folder: settings, environment, metrics, checkpoints and figures of one run.

config.yaml   env.json   metrics.jsonl   checkpoints/step-00000120/model.safetensors   figures/

and `changes.json`, if a resume changed a setting.
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
from regard_workbench.training.config import Config, parse_yaml, to_yaml
from regard_workbench.training.config.plain_yaml import MOST_BYTES
from regard_workbench.training.run_folder import changes, checksum, durable, lock

HOME = "runs"  # the default parent of run folders
LONGEST_NAME = 100
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_FORBIDDEN = set('/\\<>:"|?*')


def checked_name(name: str) -> str:
    """Check that a run name is a plain folder name on every system, so that it cannot lead out of its parent folder."""
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
        why = "starts with . - ~ or a space, or ends with . or a space"
    elif _RESERVED.fullmatch(name):
        why = "is the name of a device on some systems"
    if why:
        raise BadValue(f"name: {name[:40]!r} {why}. Use letters, digits, - and _, for instance 'dates-3'.")
    return name


def locate(out: str | None, name: str | None, fallback: str) -> Path:
    """The path of a run folder: `out` itself, or `name` inside it."""
    if out is not None and "\0" in out:
        raise BadValue("out: a path cannot hold a NUL character.")
    if out is not None and name is None:
        return Path(out)
    parent = Path(out or HOME)
    path = parent / checked_name(name or fallback)
    if path.is_symlink() and parent.resolve() not in path.resolve().parents:
        raise BadValue(f"name: {path} is a link that leads out of {parent}. Choose another name.")
    return path


def unused_name(start: str) -> str:
    """Make a name for an unnamed run from a text, the time and the process id."""
    plain = re.sub(r"[^\w-]+", "-", start).strip("-_")[:60] or "run"
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def newest_run(task: str) -> Path | None:
    """The newest run of a task in the default folder, or of any task if `task` is empty."""
    home = Path(HOME)
    configs = list(home.glob("*/config.yaml")) if home.is_dir() else []
    for config in sorted(configs, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            if parse_yaml(durable.read(config, MOST_BYTES), config).get("task") == task or not task:
                return config.parent
        except (OSError, BadValue):  # no file of settings
            continue
    return None


class RunFolder:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.held: lock.LockedFolder | None = None  # while this process holds the lock

    @property
    def exists(self) -> bool:
        """Whether this folder holds a run."""
        path = self.path / "config.yaml"
        with durable.reading(path):
            return path.is_file()

    def create(self, config: Config, device: str = "") -> None:
        """Write the files a new run starts with; raise if the folder holds a run. The caller must hold the lock."""
        self.check_free()
        with durable.reporting(self.path):
            for folder in (self.checkpoints, self.path / "figures"):
                durable.make_folder(folder)
        facts = json.dumps(environment(device), indent=1, ensure_ascii=False).encode()
        durable.replace(self.path / "env.json", facts)
        self.write_config(config)  # last: this file marks the folder as a run

    def check_path(self) -> None:
        """Raise if the folder cannot be made because it, or one of its parents, is a file."""
        if self.path.exists() and not self.path.is_dir():
            raise BadValue(f"out: {self.path} is a file, not a folder.")
        with durable.reporting(self.path):
            if any(parent.is_file() for parent in self.path.parents):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def check_free(self) -> None:
        """Raise if this folder holds a run, or parts of one whose config.yaml is missing."""
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

    def write_config(self, config: Config) -> None:
        """Write the settings the run starts with, and their checksum."""
        hint = "To change a setting: regard train --resume this folder --some-setting VALUE"
        durable.replace(self.path / "config.yaml", checksum.yaml_bytes(to_yaml(config), hint))

    def initial_settings(self) -> dict[str, Any]:
        """Read the settings the run was started with, unvalidated; raise `FileChanged` if the file was changed."""
        if not self.exists:
            raise BadValue(f"{self.path}: there is no run here (no config.yaml). Pass the folder of a run.")
        path = self.path / "config.yaml"
        try:
            content = durable.read(path, MOST_BYTES)
            checksum.check_yaml(content, path)
        except OSError as error:
            raise BadValue(f"{path}: it cannot be read: {error.strerror or error}.") from None
        except checksum.FileChanged as changed:
            raise checksum.FileChanged(
                f"{changed} Restore it from a copy. To change a setting: regard train --resume {self.path} --SETTING "
                "VALUE. If you restored the contents by hand, remove its last line."
            ) from None
        return parse_yaml(content, path)

    def settings(self, step: int | None = None) -> dict[str, Any]:
        """The settings by dotted name, as of now or as of a step."""
        changed = changes.read(self.path)
        return changes.applied(self.initial_settings(), changed if step is None else changes.until(changed, step))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, which is made if missing; raise `lock.FolderLocked` if another process holds the lock."""
        self.check_path()
        with durable.reporting(self.path):
            durable.make_folder(self.path)
        with lock.locked(self.path) as self.held:
            try:
                yield
            finally:
                self.held = None

    def check_not_moved(self, last: str = "") -> None:
        """Raise if the folder was moved or deleted since it was locked. `last` names its newest checkpoint."""
        if self.held is not None:
            self.held.check(last)


def environment(device: str = "") -> dict[str, Any]:
    """What a run depends on besides its settings: versions, machine, device, command."""
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
        "processes": int(os.environ.get("WORLD_SIZE", "1")),  # of the run, as set by torchrun
        "device": device,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
