"""Pages of what was observed. Another package draws them, and names itself as an entry point."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from regard.errors import RegardError

GROUP = "regard.viewer"


class MissingViewer(RegardError, ImportError):
    """No installed package draws pages."""


def opener(name: str) -> Any:
    """The function that an installed viewer offers under a name: `show`, `export` or `open_named`."""
    points = entry_points(group=GROUP, name=name)
    if not points:
        raise MissingViewer(
            f"no installed package offers {name!r} in the entry points {GROUP!r}. Install regard with its workbench: "
            'pip install "regard[workbench]".'
        )
    return next(iter(points)).load()
