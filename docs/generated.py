"""Files of the documents that scripts write: written, or compared with those on disk."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path


def write_or_check(description: str | None, made: Callable[[], Mapping[Path, str]]) -> int:
    """Write the files that `made` returns; with --check change nothing, and return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if a file is out of date")
    checks = parser.parse_args().check
    stale = {
        path: text for path, text in made().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if not checks:
        for path, text in stale.items():
            path.write_text(text, encoding="utf-8")
    print(f"changed: {', '.join(path.name for path in stale)}" if stale else "up to date")
    return int(checks and bool(stale))
