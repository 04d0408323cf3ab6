"""Tasks: streams, answers and metrics, each by name. `names()` lists them; `build("dates")` makes one.

This folder holds what every task needs (`task`, `problem`, `streams`, `batch`, `padding`, `shown`) and one file for
each task. What tasks are made of stands in the rooms: `answers`, `formats` (files), `generated` (data without files),
`measures`, `text`, `sound`, `time_series`. No room imports a task.
"""

from __future__ import annotations

import importlib
import pkgutil

from regard.tasks.answers import Answer, Bits, EachOf, Head, HiddenTokens, NextToken, OneOf, Tags, Writes
from regard.tasks.batch import Batch, Stream
from regard.tasks.measures.metrics import Answered, Counts, Mean, Metric
from regard.tasks.problem import Problem
from regard.tasks.shown import Shown
from regard.tasks.streams import Nodes, TokenRows, Tokens, Vectors
from regard.tasks.task import TASKS, Recipe, Task, build, names, task

# Every file of this folder is loaded, so that a new task needs no list to be written into.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "TASKS", "Answer", "Answered", "Batch", "Bits", "Counts", "EachOf", "Head", "HiddenTokens", "Mean", "Metric",
    "NextToken", "Nodes", "OneOf", "Problem", "Recipe", "Shown", "Stream", "Tags", "Task", "TokenRows", "Tokens",
    "Vectors", "Writes", "build", "names", "task",
]  # fmt: skip
