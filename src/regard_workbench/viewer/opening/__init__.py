"""From command-line options to a page model: open the models, run them under observation, generate text."""

from __future__ import annotations

from regard_workbench.viewer.opening.opening import open_page
from regard_workbench.viewer.opening.options import ViewOptions

__all__ = ["ViewOptions", "open_page"]
