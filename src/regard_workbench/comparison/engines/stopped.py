"""Why an engine ends before its jobs: a signal, or a lost cluster. Repeating the command resumes the runs."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from regard.errors import RegardError
from regard_workbench.comparison.job import Job


class ClusterLost(RegardError, ConnectionError):
    """The Ray cluster that ran the jobs is gone; each run is saved as of its last checkpoint."""


class Stopped(Exception):
    """A signal was received; the runs saved and stopped, except those that had to be killed (`unsaved`)."""

    def __init__(self, number: int, unsaved: Sequence[Job] = ()) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number
        self.unsaved = tuple(unsaved)
