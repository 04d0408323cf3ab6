"""What a run writes while it trains: lines of metrics and checkpoints. Only the main process has a recorder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.config.retention import Keep
from regard_workbench.training.run_folder import checkpoints
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.run_folder.metrics_file import MetricsFile, Record
from regard_workbench.training.run_folder.trained_settings import settings_of
from regard_workbench.training.state import Position, RandomState


class RunRecorder:
    """The open metrics file of a run, and its checkpoints."""

    def __init__(self, run: RunFolder, task: Task, keep: Keep, tell: Callable[[str], None]) -> None:
        self.run, self.task, self.keep = run, task, keep
        self.metrics = MetricsFile(run.metrics, tell)
        self.settings = settings_of(run) if run.exists else None

    def log(self, record: Record) -> None:
        """Append one line of metrics."""
        self.metrics.append(record)

    def save(
        self,
        position: Position,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        random: list[RandomState],
        scaler: Any,
        previous: int,
    ) -> None:
        """Write a checkpoint, then delete those the retention rule does not keep.

        `random` holds the random states of all processes. `previous` is the step of the last checkpoint, or -1; the
        error for a folder that was moved or deleted meanwhile names it.
        """
        tensors, numbers = RandomState.pack_all(random)
        state: dict[str, Any] = {
            "progress": dataclasses.asdict(position),
            "random": numbers,
            "scaler": None if scaler is None else scaler.state_dict(),
            "task": self.task.state(),
            "metric": self.task.metric.name,
            "settings": self.settings,
        }
        self.run.check_not_moved(checkpoints.name_of(previous) if previous >= 0 else "")
        self.metrics.sync()
        state["metrics"] = self.metrics.checksum()
        name = checkpoints.name_of(position.step)
        checkpoints.save(self.run.checkpoints, Checkpoint(name, weights, optimizer, tensors, state))
        self.prune(position)
        self.run.check_not_moved(name)

    def prune(self, position: Position) -> None:
        """Delete the checkpoints that the retention rule does not keep beside the one of this position."""
        best = None if position.best_step is None else checkpoints.name_of(position.best_step)
        checkpoints.keep(self.run.checkpoints, checkpoints.name_of(position.step), best, self.keep)

    def close(self) -> None:
        """Close the metrics file."""
        self.metrics.close()
