"""What a person sees while a run trains: a bar with loss, metric, speed and time left; plain lines where no one looks.

Everything goes to stderr. Results go to stdout, and are not printed here.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 2.0


class Display:
    """The bar, or the lines, of one run."""

    def __init__(self, steps: int, done: int, *, quiet: bool = False) -> None:
        self.steps, self.quiet = steps, quiet
        self.console = Console(stderr=True)
        self.metric = ""
        self.started, self.begun_at = time.monotonic(), done
        self.printed = 0.0
        self.bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(), console=self.console, transient=False, refresh_per_second=5,
            )  # fmt: skip
            self.line = self.bar.add_task("training", total=steps, completed=done, facts="")
            self.bar.start()

    def step(self, step: int, loss: float, speed: float) -> None:
        """A step was taken."""
        if self.bar is not None:
            self.bar.update(self.line, completed=step, facts=self._facts(loss, speed))
        elif not self.quiet and (
            time.monotonic() - self.printed >= SECONDS_BETWEEN_LINES or step == self.steps
        ):
            self.printed = time.monotonic()
            self.tell(f"step {step}/{self.steps}  {self._facts(loss, speed)}  {self._left(step)}")

    def validated(self, step: int, name: str, value: float, best: bool) -> None:
        """A validation came out."""
        self.metric = f"{name} {value:.4g}"
        if not self.quiet:
            self.tell(f"step {step}/{self.steps}  validation {self.metric}{'  (best)' if best else ''}")

    def tell(self, text: str) -> None:
        """A line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar down."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _facts(self, loss: float, speed: float) -> str:
        return "  ".join(part for part in (f"loss {loss:.4f}", self.metric, f"{speed:.3g} steps/s") if part)

    def _left(self, step: int) -> str:
        """The time to the end at the pace so far, validations and checkpoints included."""
        seconds = int((time.monotonic() - self.started) * (self.steps - step) / max(1, step - self.begun_at))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"


class TensorBoard:
    """The same numbers for TensorBoard, where it is installed."""

    def __init__(self, folder: Any, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=after + 1 if after else None)

    def write(self, record: dict[str, Any]) -> None:
        """One line of the metrics."""
        for name in ("loss", "lr", "grad_norm", "steps_per_second"):
            if record.get(name) is not None:
                self.writer.add_scalar(f"train/{name}", record[name], record["step"])
        for name, value in record.get("validation", {}).items():
            if value is not None:
                self.writer.add_scalar(f"validation/{name}", value, record["step"])

    def close(self) -> None:
        """Write out what is left."""
        self.writer.close()
