"""The base of tasks that read pictures as patches, and how pictures are read from people and shown to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches, StreamSpec
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.pictures.patches import names

Pictured = TypeVar("Pictured", bound="PatchTask", contravariant=True)


class PatchPresenter(Presenter[Pictured]):
    """Shows pictures by their patches. A subclass defines `opened`, `words` and `picture`."""

    takes: ClassVar[tuple[str, ...]] = ("image",)

    def opened(self, task: Pictured, path: str) -> Any:
        """The example of a user's picture file."""
        raise NotImplementedError(f"{type(self).__name__} does not define opened")

    def words(self, task: Pictured, example: Any) -> str:
        """What an example is."""
        raise NotImplementedError(f"{type(self).__name__} does not define words")

    def picture(self, task: Pictured, example: Any, batch: Batch) -> NDArray[np.float32]:
        """The picture of an example, (height,width) or (height,width,3), from 0 to 1."""
        raise NotImplementedError(f"{type(self).__name__} does not define picture")

    def streams(self, task: Pictured, example: Any) -> dict[str, list[str]]:
        """What is beside the patches: the words of a question, what a model's rows of attention to them stand for."""
        return {}

    def parse(self, task: Pictured, given: Mapping[str, str]) -> Any:
        """A picture file."""
        return self.opened(task, given["image"]) if set(given) == {"image"} else super().parse(task, given)

    def show(self, task: Pictured, example: Any, batch: Batch) -> Shown:
        """The picture, with row and column of each patch."""
        spec = task.spec
        return Shown(
            self.words(task, example),
            names(spec),
            "patches",
            picture=self.picture(task, example, batch),
            grid=(spec.frames * spec.rows, spec.columns),
            streams=self.streams(task, example),
        )


class PatchTask(Task):
    """A subclass defines `spec`."""

    @property
    def spec(self) -> Patches:
        """The patches of a picture."""
        raise NotImplementedError(f"{type(self).__name__} does not define spec")

    def streams(self) -> Mapping[str, StreamSpec]:
        """Patches, row by row; of a video frame by frame."""
        return {INPUTS: self.spec}

    def length(self, example: Any) -> int:
        """Patches: the same for all."""
        return self.spec.length or 0
