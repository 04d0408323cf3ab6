"""Files of records, one for each architecture: a long walk is saved as it goes, and continued."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Records = list[dict[str, Any]]


def versions(records: Records) -> str:
    """The versions of the libraries, in words."""
    found = []
    for name in ("torch", *dict.fromkeys(one["library"] for one in records)):
        try:
            found.append(f"{name} {version(name).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return f" with {', '.join(found)}"


def save(path: Path, records: Records) -> None:
    """Write the records of a walk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1))


def recorded(path: Path) -> Records:
    """The records of an earlier walk; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


def merged(path: Path, records: Records) -> Records:
    """The records of an earlier walk, replaced by new ones of the same architecture."""
    known = {(one["library"], one["name"], one["attend"]): one for one in [*recorded(path), *records]}
    return [known[key] for key in sorted(known)]
