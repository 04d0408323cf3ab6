"""The state of every random generator a run may draw from, as tensors and plain data: torch, CUDA, Python, NumPy."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


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

    def restore(self) -> None:
        """Draw from here on as if nothing had been drawn since."""
        torch.set_rng_state(self.torch)
        if self.cuda and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.cuda[0])
        random.setstate(self.python)
        np.random.set_state(self.numpy)

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
    def unpack(cls, tensors: dict[str, Tensor], plain: dict[str, Any]) -> RandomState:
        """What `pack` made."""
        python, numpy = plain["python"], plain["numpy"]
        cuda = [tensors[name] for name in sorted(t for t in tensors if t.startswith("cuda."))]
        keys = tensors["numpy"].numpy().astype(np.uint32)
        return cls(
            tensors["torch"],
            cuda,
            (python["version"], tuple(tensors["python"].tolist()), python["gauss"]),
            (numpy["name"], keys, numpy["place"], numpy["has_gauss"], numpy["cached"]),
        )
