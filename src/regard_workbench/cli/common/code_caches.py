"""The folders from which torch and Triton load compiled code: where they are, whose, and what belongs in them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

TRITON, INDUCTOR = "triton", "inductor"
_ROOT = 0  # who may do anything anyway
VARIABLES = {TRITON: "TRITON_CACHE_DIR", INDUCTOR: "TORCHINDUCTOR_CACHE_DIR"}
_TRITON_KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}")  # a SHA-256 in base 32, or in hexadecimal
_INDUCTOR_KEY = re.compile(r"c([a-z2-7]{2})[a-z2-7]{49}")  # what the names of its files begin with
# What torch writes beside the folders of two letters. Only the first two names cannot be anybody else's.
_INDUCTOR_ONLY = {"fxgraph", "aotautograd"}
_INDUCTOR_NAMES = _INDUCTOR_ONLY | {
    "aoti_eager",
    "autoheuristic",
    "bisect",
    "cache",
    "dynamo",
    "gcc",
    "locks",
    "memoizer_cache.json",
    "memoizer_cache.lock",
    "precompiled_headers",
    "torch_cutlass",
    "triton",
    "unhashed_kernel_inputs",
}


def folder_of(name: str) -> Path:
    """Where a cache lies: as its library decides, without importing it."""
    chosen = os.environ.get(VARIABLES[name])
    if chosen:
        return Path(chosen).absolute()
    if name == TRITON:
        return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return Path(default_cache_dir())


def refusal(name: str, folder: Path) -> str:
    """Why the content of a folder must not be removed as that of a cache; empty if it may, or if there is none."""
    if folder.is_symlink():
        return f"{folder} is a link; set {VARIABLES[name]} to {folder.resolve()} if that is the cache"
    if not folder.is_dir():
        return ""
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        return f"{folder} belongs to another user"
    entries = sorted(folder.iterdir())
    is_entry = _is_of_triton if name == TRITON else _is_of_inductor
    for entry in entries:
        if not is_entry(entry):
            return f"{folder} holds {entry.name!r}, which is not of this cache. Look at {VARIABLES[name]}"
    certain = name == TRITON or any(entry.name in _INDUCTOR_ONLY or _holds_keys(entry) for entry in entries)
    if certain or not entries:
        return ""
    return f"{folder} does not look like this cache. Look at {VARIABLES[name]}"


def danger(folder: Path) -> str:
    """Which other users could put code into a folder from which code is loaded; empty for none, or without a folder."""
    if not hasattr(os, "getuid") or not os.path.lexists(folder):
        return ""
    trusted = (os.getuid(), _ROOT)
    if os.lstat(folder).st_uid not in trusted or (folder.exists() and folder.stat().st_uid not in trusted):
        return "belongs to another user"
    return "may be written by every user" if folder.exists() and folder.stat().st_mode & stat.S_IWOTH else ""


def _is_of_triton(entry: Path) -> bool:
    return _TRITON_KEY.fullmatch(entry.name) is not None


def _is_of_inductor(entry: Path) -> bool:
    temporary = entry.suffix == ".py" and entry.name.startswith("tmp")
    return entry.name in _INDUCTOR_NAMES or temporary or _holds_keys(entry)


def _holds_keys(entry: Path) -> bool:
    """Whether this is a folder of two letters for the files whose names have these letters after the first."""
    if len(entry.name) != 2 or entry.is_symlink() or not entry.is_dir():
        return False
    matches = [_INDUCTOR_KEY.match(path.name) for path in entry.iterdir()]
    return any(match is not None and match[1] == entry.name for match in matches)
