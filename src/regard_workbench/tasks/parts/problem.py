"""What a task asks of a model: the streams that go in and the answer that comes out.

A model reads a `Problem` to build itself and a `Batch` to run; it never sees the task. A task never sees inside a
model. So every model that can read the streams and can give what the answer needs runs on the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regard_workbench.tasks.answers.answer import Answer
from regard_workbench.tasks.parts.batch import INPUTS
from regard_workbench.tasks.parts.streams import StreamSpec


@dataclass(frozen=True)
class Problem:
    """The streams by name, the one that single-stream models read first, and the answer."""

    streams: Mapping[str, StreamSpec]
    answer: Answer

    @classmethod
    def of(cls, inputs: StreamSpec, answer: Answer) -> Problem:
        """A problem with one stream."""
        return cls({INPUTS: inputs}, answer)

    @property
    def inputs(self) -> StreamSpec:
        """The first stream."""
        return next(iter(self.streams.values()))
