"""Results of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Report:
    """Results, printed as they come and written to a file after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, list[Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, part: str, found: dict[str, Any]) -> None:
        """Add one answer of a part."""
        self.results.setdefault(part, []).append(found)
        self.write()
        shown = {name: value for name, value in found.items() if name != "longest"}
        print(part, found.get("error", shown), flush=True)

    def write(self) -> None:
        """Write the file anew."""
        self.path.write_text(json.dumps(self.results, indent=1, default=str) + "\n", encoding="utf-8")
