"""Where a run stands: counters, the best so far, and what is left to do for the last step, all as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.training.random_state import RandomState


@dataclass
class Position:
    """Counters of a run. `batches` alone says where in the data it is: the order is a function of it."""

    step: int = 0
    batches: int = 0
    tokens: int = 0  # real positions that were trained on, over all processes
    seconds: float = 0.0  # of training, over all processes that worked on the run
    best: float | None = None  # the deciding metric at its best
    best_step: int | None = None
    best_loss: float | None = None  # of the same validation; None where it is unknown
    stale: int = 0  # validations since the deciding metric last improved
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)  # of the last validation
    pending: dict[str, Any] | None = None  # the record of a step whose validation was interrupted

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Position:
        """From what a checkpoint holds."""
        known = {one.name for one in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in state.items() if name in known})

    def validated(self, value: float, higher_is_better: bool, loss: float | None = None) -> bool:
        """Note a validation; whether it is the best so far. A non-finite value is never the best.

        Among equal values the lower loss is better, and among equal losses the earlier validation. A lower loss alone
        does not count as progress for `patience`: otherwise a run whose metric cannot rise further would never stop.
        """
        improved = math.isfinite(value) and (
            self.best is None or (value > self.best if higher_is_better else value < self.best)
        )
        known = loss if loss is not None and math.isfinite(loss) else None
        tie_won = False
        if value == self.best and known is not None and self.best_loss is not None:
            tie_won = known < self.best_loss
        self.stale = 0 if improved else self.stale + 1
        if improved or tie_won:
            self.best, self.best_step, self.best_loss = value, self.step, known
        return improved or tie_won


@dataclass(frozen=True)
class Boundary:
    """What a forward pass may change besides gradients, as it was before the step began: draws and buffers."""

    random: RandomState
    buffers: dict[str, Tensor]


class Buffers:
    """Copies of a model's kept buffers (running statistics, baselines), made only of those that changed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        kept = set(model.state_dict())
        self.names = [name for name, _ in model.named_buffers() if name in kept]
        self._marks: dict[str, tuple[Tensor, int]] = {}
        self._copies: dict[str, Tensor] = {}

    def now(self) -> dict[str, Tensor]:
        """The buffers as they are; later changes do not reach what is returned."""
        if not self.names:
            return {}
        for name, buffer in self.model.named_buffers():
            if name not in self.names:
                continue
            mark = self._marks.get(name)
            # A graph's replay changes buffers without counting it, so on a device they are always copied.
            if mark is None or mark[0] is not buffer or mark[1] != buffer._version or buffer.is_cuda:
                self._copies[name] = buffer.detach().clone()
                self._marks[name] = (buffer, buffer._version)
        return dict(self._copies)


def seed_everything(seed: int) -> None:
    """Start every random generator from one number."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
