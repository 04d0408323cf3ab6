"""What a person sees while a comparison runs: a bar for each run in a terminal, plain lines where no one looks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from regard.comparison.engines.engine import Event
from regard.comparison.job import Job
from regard.training.config import budget
from regard.training.config.recipe import complete

SECONDS_BETWEEN_LINES = 10.0
_WORDS = {"began": "begins", "silent": "silent", "again": "again", "done": "done", "failed": "FAILED"}


class Watch:
    """Hears the events of a comparison and shows them on stderr."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bars: dict[str, TaskID] = {}  # by a run's folder
        self.printed: dict[str, float] = {}
        self.progress: Progress | None = None
        if self.console.is_terminal:
            self.progress = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
                TimeElapsedColumn(), console=self.console, transient=True, refresh_per_second=4,
            )  # fmt: skip

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress is not None:
            self.progress.stop()

    def tell(self, text: str) -> None:
        """A line, above the bars where there are some."""
        if self.progress is not None:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def hear(self, event: Event) -> None:
        """Show what happened to a run."""
        if event.news != "step":
            said = f"{_WORDS[event.news]:7} {name_of(event.job)}"
            self.tell(f"{said}: {event.text}" if event.text else said)
        elif self.progress is None and self._due(event.job):
            self.tell(f"        {name_of(event.job)}: step {event.step}")
        if self.progress is not None:
            self._move(self.progress, event)

    def _move(self, progress: Progress, event: Event) -> None:
        folder = event.job.folder
        if event.news in ("done", "failed"):
            if folder in self.bars:
                progress.remove_task(self.bars.pop(folder))
            if not self.bars:  # an empty display would go on printing empty lines
                progress.stop()
            return
        if folder not in self.bars:
            length = budget.budget_of(complete(event.job.settings))
            total = length.amount if length.kind == "steps" else None
            self.bars[folder] = progress.add_task(name_of(event.job), total=total)
            progress.start()
        progress.update(self.bars[folder], completed=event.step)

    def _due(self, job: Job) -> bool:
        now = time.monotonic()
        due = now - self.printed.setdefault(job.folder, now) >= SECONDS_BETWEEN_LINES
        if due:
            self.printed[job.folder] = now
        return due


def name_of(job: Job) -> str:
    """A run as its user knows it."""
    trial = "" if job.test else f", {Path(job.folder).name}"
    return f"{job.contestant.label}, seed {job.seed}{trial}"
