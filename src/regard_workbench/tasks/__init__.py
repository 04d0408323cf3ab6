"""Tasks: streams, answers and metrics, each by name. `names()` lists them; `build("dates")` makes one.

This folder holds one file for each task, and nothing else. What tasks are made of stands in its rooms: `parts` (the
base class, streams, batches), `answers`, `formats` (files), `generated` (data without files), `measures`, `text`,
`sound`, `time_series`. No room imports a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard_workbench.tasks.answers import Answer, Bits, EachOf, Head, HiddenTokens, NextToken, OneOf, Tags, Writes
    from regard_workbench.tasks.measures.metrics import Answered, Counts, Mean, Metric
    from regard_workbench.tasks.parts.batch import Batch, Stream
    from regard_workbench.tasks.parts.problem import Problem
    from regard_workbench.tasks.parts.shown import Shown
    from regard_workbench.tasks.parts.streams import Nodes, TokenRows, Tokens, Vectors
    from regard_workbench.tasks.parts.task import TASKS, Recipe, Task, build, names, task

__all__ = [
    "TASKS",
    "Answer",
    "Answered",
    "Batch",
    "Bits",
    "Counts",
    "EachOf",
    "Head",
    "HiddenTokens",
    "Mean",
    "Metric",
    "NextToken",
    "Nodes",
    "OneOf",
    "Problem",
    "Recipe",
    "Shown",
    "Stream",
    "Tags",
    "Task",
    "TokenRows",
    "Tokens",
    "Vectors",
    "Writes",
    "build",
    "names",
    "task",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())
