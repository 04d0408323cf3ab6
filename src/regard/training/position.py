"""Where a run stands: counters, the best validation, an unfinished validation; and snapshots taken before a step."""

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
        """Read the counters of a checkpoint."""
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
class Snapshot:
    """What a forward pass changes besides gradients, copied before a step: random states and buffers."""

    random: RandomState
    buffers: dict[str, Tensor]


class Buffers:
    """Copies of a model's persistent buffers (running statistics, baselines); only changed buffers are copied again."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        kept = set(model.state_dict())
        self.names = [name for name, _ in model.named_buffers() if name in kept]
        self._marks: dict[str, tuple[Tensor, int]] = {}
        self._copies: dict[str, Tensor] = {}

    def now(self) -> dict[str, Tensor]:
        """Copies of the current buffers; later changes do not affect them."""
        if not self.names:
            return {}
        for name, buffer in self.model.named_buffers():
            if name not in self.names:
                continue
            mark = self._marks.get(name)
            # The replay of a CUDA graph changes buffers but not their versions, so those on a GPU are always copied.
            if mark is None or mark[0] is not buffer or mark[1] != buffer._version or buffer.is_cuda:
                self._copies[name] = buffer.detach().clone()
                self._marks[name] = (buffer, buffer._version)
        return dict(self._copies)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
