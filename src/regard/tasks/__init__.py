"""Tasks: data, batches, loss and metrics, each by name. `names()` lists them; `build("dates")` makes one."""

from __future__ import annotations

import importlib
import pkgutil

from regard.tasks.problem import Batch, Problem, Tokens, Vectors
from regard.tasks.task import TASKS, Recipe, Task, build, names, task

# Every file of this package is loaded, so that a new task needs no list to be written into.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TASKS", "Batch", "Problem", "Recipe", "Task", "Tokens", "Vectors", "build", "names", "task"]
