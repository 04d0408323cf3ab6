"""Training: a loop that loses nothing. `train(Config(task="dates"))` makes a run folder and returns a `Result`.

The parts are loaded when they are first asked for, so that the command line can list its options without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regard.training.config import Config, Optim

_MODULES = {"train": "run", "Result": "run", "evaluate": "evaluation", "load_run": "loading"}

__all__ = ["Config", "Optim", "Result", "evaluate", "load_run", "train"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
