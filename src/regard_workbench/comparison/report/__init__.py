"""`report.html`: a comparison on one page that works without a network."""

from __future__ import annotations

from regard_workbench.comparison.report.page import write

__all__ = ["write"]
