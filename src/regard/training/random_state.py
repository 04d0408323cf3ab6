"""The state of every random generator a run may draw from, as tensors and plain data: torch, CUDA, Python, NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import BadValue
from regard.training import schema


@dataclass(frozen=True)
class RandomState:
    """All generators at one moment."""

    torch: Tensor
    cuda: list[Tensor]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """The present state; drawing goes on undisturbed."""
        cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []  # this process's device
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state(legacy=True))

    def later(self) -> RandomState:
        """The state after draws on the device alone."""
        return replace(self, cuda=[torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])

    def restore(self) -> None:
        """Draw from here on as if nothing had been drawn since."""
        try:
            torch.set_rng_state(self.torch)
            if self.cuda and torch.cuda.is_available():
                torch.cuda.set_rng_state(self.cuda[0])
            random.setstate(self.python)
            np.random.set_state(self.numpy)
        except (RuntimeError, ValueError, TypeError) as refused:
            raise BadValue(
                f"random: a generator does not take its state: {str(refused).splitlines()[0]}."
            ) from None

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As tensors and JSON."""
        kind, words, gauss = self.python
        name, keys, place, has_gauss, cached = self.numpy
        tensors = {
            "torch": self.torch,
            "python": torch.tensor(words, dtype=torch.int64),
            "numpy": torch.from_numpy(keys.astype(np.int64)),
            **{f"cuda.{index}": state for index, state in enumerate(self.cuda)},
        }
        plain = {
            "python": {"version": kind, "gauss": gauss},
            "numpy": {
                "name": name,
                "place": int(place),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            },
        }
        return tensors, plain

    @classmethod
    def pack_all(cls, states: Sequence[RandomState]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Those of several processes; the first stands where a single one would."""
        tensors, plain = states[0].pack()
        plain["others"] = []
        for number, state in enumerate(states[1:], start=1):
            more, numbers = state.pack()
            tensors |= {f"process-{number}.{name}": tensor for name, tensor in more.items()}
            plain["others"].append(numbers)
        return tensors, plain

    @classmethod
    def unpack_all(cls, tensors: dict[str, Tensor], plain: Any) -> list[RandomState]:
        """What `pack_all`, or `pack`, made."""
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
        """What `pack` made."""
        schema.of_random(tensors, plain)
        python, numpy = plain["python"], plain["numpy"]
        cuda = [tensors[name] for name in sorted(t for t in tensors if t.startswith("cuda."))]
        keys = tensors["numpy"].numpy().astype(np.uint32)
        return cls(
            tensors["torch"],
            cuda,
            (python["version"], tuple(tensors["python"].tolist()), python["gauss"]),
            (numpy["name"], keys, numpy["place"], numpy["has_gauss"], numpy["cached"]),
        )
