"""From what somebody typed to a stage: open the models, run them once while observing, write what is to be written."""

from __future__ import annotations

from regard.viewer.opening.opening import open_stage
from regard.viewer.opening.wish import Wish

__all__ = ["Wish", "open_stage"]
