"""A notebook as a page: its text, its code, and the small outputs that it was committed with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def page(path: Path) -> str:
    """The page of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Cell) -> list[str]:
    text = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    printed = "".join(_joined(one["text"]) for one in cell["outputs"] if one["output_type"] == "stream")
    values = [_joined(one["data"]["text/plain"]) for one in cell["outputs"] if "text/plain" in one.get("data", {})]
    shown = [f"```text\n{output.rstrip()}\n```" for output in (printed, *values) if output.strip()]
    return [f"```python\n{text}\n```", *shown]


def _joined(text: str | list[str]) -> str:
    """A notebook stores text as a string or as a list of lines."""
    return text if isinstance(text, str) else "".join(text)
