"""Training. `train(Config(task="dates"))` writes a run folder and returns a `Result`.

Read `loop.py` first, then `engines/`; `run_folder/` has everything about files on disk.
Modules are imported when their names are first used, so that `regard train --help` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regard_workbench.training.config import Config, Optim

_MODULES = {"train": "run", "Result": "run", "evaluate": "evaluation", "load_run": "loading"}

__all__ = ["Config", "Optim", "Result", "evaluate", "load_run", "train"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
