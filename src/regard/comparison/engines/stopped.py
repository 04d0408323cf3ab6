"""Why an engine ends before its jobs: it was asked to stop, or it lost its cluster. The same command goes on."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from regard.comparison.job import Job
from regard.errors import RegardError


class ClusterLost(RegardError, ConnectionError):
    """The cluster that the jobs ran on is gone; each run is saved as of its last checkpoint."""


class Stopped(Exception):
    """A signal came; the runs have saved and ended, but for those that had to be killed (`unsaved`)."""

    def __init__(self, number: int, unsaved: Sequence[Job] = ()) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number
        self.unsaved = tuple(unsaved)
