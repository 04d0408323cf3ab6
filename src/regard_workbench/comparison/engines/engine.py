"""What an engine is: it runs jobs somewhere, and reports events of each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from regard_workbench.comparison.job import Job, Outcome

News = Literal["began", "step", "silent", "again", "done", "failed"]


@dataclass(frozen=True)
class Event:
    """Something that happened to a job."""

    job: Job
    news: News  # "silent": no progress; "again": its process died and was restarted from the last checkpoint
    text: str = ""  # for people
    step: int = 0  # the step the run has reached


class Engine(Protocol):
    """Runs jobs."""

    def run(self, jobs: Iterable[Job], on_event: Callable[[Event], None]) -> list[Outcome]:
        """Run all jobs, in parallel as far as there are resources, and return their outcomes in the order of the jobs.

        A job that fails gives an outcome with `error`; the others continue. `jobs` may be lazy.
        """
