"""What a run writes while it trains: lines of metrics, also for other programs, and checkpoints.

Only the main process has a recorder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.config import Config, non_defaults
from regard_workbench.training.config.retention import Keep
from regard_workbench.training.engines.engine import EngineState
from regard_workbench.training.run_folder import checkpoints
from regard_workbench.training.run_folder.changes import settings_of
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.run_folder.metrics_file import MetricsFile, Record
from regard_workbench.training.state import RandomState

if TYPE_CHECKING:
    from regard_workbench.training.loop import Position
    from regard_workbench.training.reporting import Reports


class RunRecorder:
    """The open metrics file of a run, its checkpoints, and the programs that get its metrics, too."""

    def __init__(self, config: Config, run: RunFolder, task: Task, step: int, tell: Callable[[str], None]) -> None:
        self.run, self.task, self.keep = run, task, Keep.parse(config.keep)
        self.metrics = MetricsFile(run.metrics, tell)
        self.settings = settings_of(run) if run.exists else None
        self.reports: Reports | None = None
        if config.report_to is not None:
            from regard_workbench.training.reporting import Reports

            self.reports = Reports(config.report_to, run.path, non_defaults(config), step, tell)

    def log(self, record: Record) -> None:
        """Append one line of metrics."""
        self.metrics.append(record)
        if self.reports is not None:
            self.reports.write(record)

    def save(self, position: Position, tensors: EngineState, previous: int) -> None:
        """Write a checkpoint, then delete those the retention rule does not keep.

        `previous` is the step of the last checkpoint, or -1; the error for a folder that was moved or deleted meanwhile
        names it.
        """
        random, numbers = RandomState.pack_all(tensors.random)
        state: dict[str, Any] = {
            "progress": dataclasses.asdict(position),
            "random": numbers,
            "scaler": tensors.scaler,
            "task": self.task.state(),
            "metric": self.task.metric.name,
            "settings": self.settings,
        }
        self.run.check_not_moved(checkpoints.name_of(previous) if previous >= 0 else "")
        self.metrics.sync()
        state["metrics"] = self.metrics.checksum()
        name = checkpoints.name_of(position.step)
        checkpoints.save(self.run.checkpoints, Checkpoint(name, tensors.weights, tensors.optimizer, random, state))
        self.prune(position)
        self.run.check_not_moved(name)

    def prune(self, position: Position) -> None:
        """Delete the checkpoints that the retention rule does not keep beside the one of this position."""
        best = None if position.best_step is None else checkpoints.name_of(position.best_step)
        checkpoints.keep(self.run.checkpoints, checkpoints.name_of(position.step), best, self.keep)

    def close(self) -> None:
        """Close the reports and the metrics file."""
        try:
            if self.reports is not None:
                self.reports.close()
        finally:
            self.metrics.close()
