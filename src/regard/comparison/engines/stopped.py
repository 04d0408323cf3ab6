"""What an engine raises when someone asked it to stop: everything is saved, and the same command goes on."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from regard.comparison.job import Job


class Stopped(Exception):
    """A signal came; the runs have saved and ended, but for those that had to be killed (`unsaved`)."""

    def __init__(self, number: int, unsaved: Sequence[Job] = ()) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number
        self.unsaved = tuple(unsaved)
