"""How answers are judged: the second of the three values of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from regard_workbench.tasks.measures.metrics import LOSS, Answering, Metric, State


@dataclass(frozen=True)
class Judge:
    """The metrics of a task; `metric` decides which checkpoint is best.

    A subclass measures more. Its methods take the task that is judged.
    """

    metric: Metric
    metrics: tuple[Metric, ...]
    about: Mapping[str, str] = field(default_factory=dict)  # how metrics are computed, by what they measure

    @classmethod
    def by(cls, *metrics: Metric, **about: str) -> Judge:
        """The first metric decides; the loss is always measured."""
        return cls(metrics[0], (LOSS, *metrics), about)

    def protocol(self, task: Any) -> dict[str, Any]:
        """How metrics are computed, to be printed beside them (for example sacreBLEU's signature)."""
        return dict(self.about)

    def examine(
        self, task: Any, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """Additional metrics for `regard evaluate`, measured on a model in eval mode."""
        return []

    def completed(
        self, task: Any, model: Answering, split: str, *, batch_size: int, most: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """How well a model completes texts of a split, `most` of them at most; nothing where it completes none.

        Measured by `regard evaluate`, `regard compare` and the last validation of a run: a model writes token by token,
        so this takes longer than the other metrics.
        """
        return []
