"""The progress of a run on stderr: a bar with loss, metric, speed and time left on a terminal, plain lines elsewhere.

Results go to stdout and are not printed here. The speed leaves out the first steps, which compile and capture.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from regard_workbench.training.config.budget import Budget
from regard_workbench.training.signals import to_stderr

if TYPE_CHECKING:
    from regard_workbench.training.loop import Position

WARM_UP = 5  # steps in which buffers are allocated, code is compiled and a CUDA graph is captured
SECONDS_BETWEEN_LINES = 2.0
SECONDS_BETWEEN_UPDATES = 0.1  # of the bar, which is drawn five times a second; many steps may lie between


class Pace:
    """Counts the steps of one process and their seconds.

    >>> pace = Pace()
    >>> for seconds in (9.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5):
    ...     pace.add_step(seconds)
    >>> pace.steps_per_second
    2.0
    """

    def __init__(self) -> None:
        self.steps, self.seconds = 0, 0.0
        self._before = 0.0  # seconds of the first steps

    def add_step(self, seconds: float) -> None:
        """Count a step that took so long."""
        self.steps += 1
        self.add_wait(seconds)

    def add_wait(self, seconds: float) -> None:
        """Count time spent waiting for steps that were counted before."""
        self.seconds += seconds
        if self.steps <= WARM_UP:
            self._before += seconds

    @property
    def steps_per_second(self) -> float:
        """Without the first `WARM_UP` steps; as long as there are no others, of those."""
        if self.steps <= WARM_UP:
            return self.steps / self.seconds if self.seconds else 0.0
        later = self.seconds - self._before
        return (self.steps - WARM_UP) / later if later else 0.0


class Display:
    """The progress bar, or the progress lines, of one run."""

    def __init__(self, budget: Budget, position: Position, *, quiet: bool = False) -> None:
        self.budget, self.position, self.quiet = budget, position, quiet
        self.console = Console(stderr=True)
        self.metric = ""
        self.started, self.first_share = time.monotonic(), budget.share(position)
        self.printed = 0.0
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=False,
                refresh_per_second=5,
            )
            self.line = self.bar.add_task("training", total=1.0, facts="")
            self.bar.update(self.line, completed=self.first_share)
            self.bar.start()

    def step(self, loss: float, speed: float) -> None:
        """Show a step that was taken."""
        if self.quiet:
            return
        if self.bar is not None:
            instant = time.monotonic()
            if instant - self.printed < SECONDS_BETWEEN_UPDATES and not self.budget.ends(self.position):
                return
            self.printed = instant
            facts = f"{self._progress()}  {self._facts(loss, speed)}"
            self.bar.update(self.line, completed=self.budget.share(self.position), facts=facts)
        elif time.monotonic() - self.printed >= SECONDS_BETWEEN_LINES or self.budget.ends(self.position):
            self.printed = time.monotonic()
            self.tell(f"step {self._progress()}  {self._facts(loss, speed)}  {self._left()}")

    def validated(self, name: str, value: float, best: bool) -> None:
        """Show the result of a validation."""
        self.metric = f"{name} {value:.4g}"
        if not self.quiet:
            self.tell(f"step {self._progress()}  validation {self.metric}{'  (best)' if best else ''}")

    def tell(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            to_stderr(text)

    def close(self) -> None:
        """Stop the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _facts(self, loss: float, speed: float) -> str:
        return "  ".join(fact for fact in (f"loss {loss:.4f}", self.metric, f"{speed:.3g} steps/s") if fact)

    def _progress(self) -> str:
        return self.budget.words(self.position)

    def _left(self) -> str:
        """The remaining time at the speed so far, including validations and checkpoints."""
        share = self.budget.share(self.position)
        if share <= self.first_share:
            return "" if share < 1 else "0:00:00 left"
        seconds = int((time.monotonic() - self.started) * (1 - share) / (share - self.first_share))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"
