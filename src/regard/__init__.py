"""regard: any attention in one call, exact on every path, linear in memory.

>>> import torch, regard
>>> from regard import masks
>>> q, k, v = torch.randn(3, 2, 8, 100, 64).unbind(0)
>>> regard.attend(q, k, v, mask=masks.causal() & masks.window(15, 0)).shape
torch.Size([2, 8, 100, 64])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard import biases, errors, masks, nn, normalizers, scores
from regard.core.attention import attend, explain, summarize, weights
from regard.core.plan import Plan
from regard.core.summary import Summary
from regard.errors import BadType, BadValue, Frozen, RegardError, Unsupported

if TYPE_CHECKING:
    from regard import decoding, models, observation, tasks, training
    from regard.observation.observe import observe
    from regard.workbench import attack, compare, evaluate, export, train, view

__version__ = "0.1.0"

__all__ = [
    "BadType", "BadValue", "Frozen", "Plan", "RegardError", "Summary", "Unsupported", "attack", "attend", "biases",
    "compare", "decoding", "errors", "evaluate", "explain", "export", "masks", "models", "nn", "normalizers",
    "observation", "observe", "scores", "summarize", "tasks", "train", "training", "view", "weights",
]  # fmt: skip

# Imported at first use, because they import libraries that `attend` does not need.
# name: (module, attribute); attribute None: the module itself.
_LAZY: dict[str, tuple[str, str | None]] = {
    "attack": ("regard.workbench", "attack"),
    "compare": ("regard.workbench", "compare"),
    "decoding": ("regard.decoding", None),
    "evaluate": ("regard.workbench", "evaluate"),
    "export": ("regard.workbench", "export"),
    "models": ("regard.models", None),
    "observation": ("regard.observation", None),
    "observe": ("regard.observation.observe", "observe"),
    "tasks": ("regard.tasks", None),
    "train": ("regard.workbench", "train"),
    "training": ("regard.training", None),
    "view": ("regard.workbench", "view"),
}

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'regard' has no attribute {name!r}")
        module, attribute = _LAZY[name]
        found = import_module(module)
        return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
