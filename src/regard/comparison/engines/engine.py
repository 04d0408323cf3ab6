"""What an engine is: it takes jobs, runs them somewhere, and tells how each of them goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from regard.comparison.job import Job, Outcome

News = Literal["began", "step", "silent", "again", "done", "failed"]


@dataclass(frozen=True)
class Event:
    """Something that happened to a job."""

    job: Job
    news: News  # "silent": it makes no progress; "again": its process died and it goes on from its last checkpoint
    text: str = ""  # for people
    step: int = 0  # "step": how far it is


class Engine(Protocol):
    """Where jobs run."""

    def run(self, jobs: Iterable[Job], on_event: Callable[[Event], None]) -> list[Outcome]:
        """Run all jobs, in parallel where there is room, and return their outcomes in the order of the jobs.

        A job that fails gives an outcome with `error`; the others go on. `jobs` may be lazy.
        """
