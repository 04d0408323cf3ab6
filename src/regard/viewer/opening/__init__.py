"""From what somebody typed to a page: open the models, run them once while observing, write what is to be written."""

from __future__ import annotations

from regard.viewer.opening.opening import open_page
from regard.viewer.opening.options import ViewOptions

__all__ = ["ViewOptions", "open_page"]
