"""regard: any attention in one call, exact on every path, linear in memory.

>>> import torch, regard
>>> from regard import masks
>>> q, k, v = torch.randn(3, 2, 8, 100, 64).unbind(0)
>>> regard.attend(q, k, v, mask=masks.causal() & masks.window(15, 0)).shape
torch.Size([2, 8, 100, 64])
"""

from importlib import import_module
from typing import Any

from regard import biases, masks, nn, normalizers, scores
from regard.core.attention import attend, explain, summarize, weights
from regard.core.plan import Plan
from regard.core.summary import Summary
from regard.errors import RegardError, Unsupported

__version__ = "0.1.0"

__all__ = [
    "Plan", "RegardError", "Summary", "Unsupported", "attend", "biases", "decoding", "explain", "masks", "models", "nn",
    "normalizers", "observation", "observe", "scores", "summarize", "tasks", "training", "weights",
]  # fmt: skip

# Loaded when first used: they bring their own libraries along.
_ROOMS = ("decoding", "models", "observation", "tasks", "training")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"regard.{name}")
    if name in ("compare", "evaluate", "train", "view"):
        return getattr(import_module("regard.workbench"), name)
    if name == "observe":
        return import_module("regard.observation.observe").observe
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
