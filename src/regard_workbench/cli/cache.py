"""`regard cache`: what compiled kernels take on disk, and how to remove them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue
from regard_workbench.cli.common.code_caches import INDUCTOR, TRITON, folder_of, refusal
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser

SUMMARY = "Show what compiled kernels take on disk, and remove them; they are compiled again when needed."
EXAMPLES = ("regard cache", "regard cache --clean triton,inductor")

FAILED = 1
KINDS = {
    TRITON: "kernels of Triton (impl='triton', and torch.compile on a GPU)",
    INDUCTOR: "code of torch.compile (--compile, impl='flex')",
}


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    clean = f"remove the files of these caches, joined by commas: {', '.join(KINDS)}, or all"
    parser.add_argument("--clean", type=str, metavar="NAMES", help=clean)
    parser.add_argument("--json", action="store_true", help="folders and sizes as JSON on stdout")


def run(options: Namespace) -> int:
    """List the caches; with --clean, empty some of them. 0; 1 if a file could not be removed."""
    chosen = _chosen(options.clean)
    caches = [_described(name) for name in KINDS]
    left = False
    for row in caches:
        if row["name"] in chosen:
            row["removed_bytes"] = row["bytes"]
            trouble = _empty(row["name"], Path(row["folder"]))
            row["files"], row["bytes"] = _measured(Path(row["folder"]))
            row["removed_bytes"] -= row["bytes"]
            if trouble:
                left = True
                tell(f"regard cache: {trouble}")
    if options.json:
        print(json.dumps(caches, indent=1, ensure_ascii=False))
        return FAILED if left else 0
    for row in caches:
        removed = f", removed {_size(row['removed_bytes'])}" if "removed_bytes" in row else ""
        print(printable(f"{row['name']}: {_size(row['bytes'])} in {row['files']:,} files{removed}"))
        print(printable(f"  {row['holds']}"))
        print(printable(f"  {row['folder']}"))
    return FAILED if left else 0


def _chosen(names: str | None) -> list[str]:
    if names is None:
        return []
    chosen = list(KINDS) if names.strip() == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in KINDS:
            raise BadValue(f"--clean: expected some of {', '.join(KINDS)}, or all; got {name!r}.")
    return chosen


def _described(name: str) -> dict[str, Any]:
    folder = folder_of(name)
    files, size = _measured(folder)
    return {"name": name, "holds": KINDS[name], "folder": str(folder), "files": files, "bytes": size}


def _measured(folder: Path) -> tuple[int, int]:
    """The number of files below a folder and their bytes; links are counted, not followed."""
    files = size = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(base, name)).st_size
            except OSError:  # removed meanwhile
                continue
            files += 1
    return files, size


def _empty(name: str, folder: Path) -> str:
    """Remove what is in the folder of a cache; returns what went wrong. Another folder is left alone."""
    try:
        if why := refusal(name, folder):
            return f"{why}. Nothing was removed."
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror or error}."
    return ""


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return ""
