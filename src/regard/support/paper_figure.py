"""The figure that everything here draws on: a paper takes its files, and a notebook shows it."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# TrueType; publishers refuse matplotlib's usual Type 3.
EMBEDDED: Any = {"pdf.fonttype": 42, "ps.fonttype": 42}


class PaperFigure(Figure):
    """A figure whose PDF holds its fonts as TrueType, whatever the settings at the time it is saved."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """Save the figure."""
        with matplotlib.rc_context(EMBEDDED):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        """What a notebook shows, whether or not pyplot is in use."""
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=160)
        return drawn.getvalue()
