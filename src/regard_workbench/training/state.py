"""The state of a run between two steps: counters, random generators, and snapshots to undo an abandoned step."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard_workbench.training.run_folder import schema


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

    def copy(self) -> Position:
        """The same counters; `copy.copy` would take ten times as long, in every step."""
        made = object.__new__(Position)
        made.__dict__.update(self.__dict__)
        return made

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
class RandomState:
    """The states of all generators at one moment."""

    torch: Tensor
    cuda: list[Tensor]
    python: Any
    numpy: Any

    @classmethod
    def now(cls, kind: str = "cuda") -> RandomState:
        """Read the current states: of the generators that a run on this kind of device draws from."""
        drawing = torch.cuda.is_initialized() and kind == "cuda"
        cuda = [torch.cuda.get_rng_state()] if drawing else []  # of this process's device
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state(legacy=True))

    def after_draws(self, count: int) -> RandomState:
        """The states after the device has drawn so many random numbers, as its generator counts them."""
        cuda = [state.clone() for state in self.cuda]
        for state in cuda:
            state.view(torch.int64)[1] += count  # seed and offset of the generator
        return RandomState(self.torch, cuda, self.python, self.numpy)

    def restore(self) -> None:
        """Set all generators to these states."""
        try:
            torch.set_rng_state(self.torch)
            if self.cuda and torch.cuda.is_available():
                torch.cuda.set_rng_state(self.cuda[0])
            random.setstate(self.python)
            np.random.set_state(self.numpy)
        except (RuntimeError, ValueError, TypeError) as refused:
            raise BadValue(f"random: a generator rejects its state: {str(refused).splitlines()[0]}.") from None

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Convert to tensors and JSON."""
        kind, words, gauss = self.python
        name, keys, index, has_gauss, cached = self.numpy
        tensors = {
            "torch": self.torch,
            "python": torch.tensor(words, dtype=torch.int64),
            "numpy": torch.from_numpy(keys.astype(np.int64)),
            **{f"cuda.{index}": state for index, state in enumerate(self.cuda)},
        }
        plain = {
            "python": {"version": kind, "gauss": gauss},
            "numpy": {"name": name, "place": int(index), "has_gauss": int(has_gauss), "cached": float(cached)},
        }
        return tensors, plain

    @classmethod
    def pack_all(cls, states: Sequence[RandomState]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Convert the states of several processes; rank 0 has the names that a single process has."""
        tensors, plain = states[0].pack()
        plain["others"] = []
        for number, state in enumerate(states[1:], start=1):
            more, numbers = state.pack()
            tensors |= {f"process-{number}.{name}": tensor for name, tensor in more.items()}
            plain["others"].append(numbers)
        return tensors, plain

    @classmethod
    def unpack_all(cls, tensors: dict[str, Tensor], plain: Any) -> list[RandomState]:
        """Read what `pack_all` or `pack` returned."""
        found = [cls.unpack(tensors, plain)]
        others = plain.get("others", [])
        if not isinstance(others, list):
            raise BadValue(f"random.others: expected a list, got {type(others).__name__}.")
        for number, numbers in enumerate(others, start=1):
            head = f"process-{number}."
            own = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
            found.append(cls.unpack(own, numbers))
        return found

    @classmethod
    def unpack(cls, tensors: dict[str, Tensor], plain: Any) -> RandomState:
        """Read what `pack` returned."""
        schema.check_random(tensors, plain)
        python, numpy = plain["python"], plain["numpy"]
        cuda = [tensors[name] for name in sorted(t for t in tensors if t.startswith("cuda."))]
        keys = tensors["numpy"].numpy().astype(np.uint32)
        return cls(
            tensors["torch"],
            cuda,
            (python["version"], tuple(tensors["python"].tolist()), python["gauss"]),
            (numpy["name"], keys, numpy["place"], numpy["has_gauss"], numpy["cached"]),
        )


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@dataclass(slots=True)
class Snapshot:
    """What a forward pass changes besides gradients, noted before a step: random states and buffers."""

    earlier: RandomState  # the states some captured steps before, …
    drawn: int  # … in which the device has drawn so many random numbers; reading its generator takes time
    buffers: dict[str, Tensor]

    @property
    def random(self) -> RandomState:
        """The states before the step."""
        return self.earlier.after_draws(self.drawn) if self.drawn else self.earlier


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
