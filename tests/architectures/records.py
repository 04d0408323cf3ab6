"""Files of records, one for each architecture: a long walk is saved as it goes, and continued."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Records = list[dict[str, Any]]


def installed(library: str) -> str:
    """The versions of torch and of a library, in words."""
    found = []
    for name in ("torch", library):
        try:
            found.append(f"{name} {version(name).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def versions(records: Records) -> str:
    """The versions that records were made with, in words; with the number of records where they differ."""
    counts = Counter(one.get("with") or installed(one["library"]) for one in records)
    if len(counts) == 1:
        return f" with {next(iter(counts))}"
    return " with " + "; ".join(f"{which} ({count} names)" for which, count in counts.most_common())


def save(path: Path, records: Records) -> None:
    """Write records, one on each line; a process that is killed meanwhile leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in records) + "\n]\n")
    part.replace(path)


def recorded(path: Path) -> Records:
    """The records of an earlier walk; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


def merged(path: Path, records: Iterable[dict[str, Any]]) -> Records:
    """The records of an earlier walk, replaced by new ones of the same architecture."""
    known = {(one["library"], one["name"], one["attend"]): one for one in [*recorded(path), *records]}
    return [known[key] for key in sorted(known)]
