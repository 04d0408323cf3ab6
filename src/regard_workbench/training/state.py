"""The random generators of a process: seeded, read, restored, and as tensors and JSON of a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.training.run_folder import schema


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
        states = [cls.unpack(tensors, plain)]
        processes = plain.get("others", [])
        if not isinstance(processes, list):
            raise BadValue(f"random.others: expected a list, got {type(processes).__name__}.")
        for number, numbers in enumerate(processes, start=1):
            head = f"process-{number}."
            process_tensors = {
                name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)
            }
            states.append(cls.unpack(process_tensors, numbers))
        return states

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
