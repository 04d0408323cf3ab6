"""The base of tasks that say where things are on a picture: scenes, the canvas, what is read, shown and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.figure_files import Figures, load_figures
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.located_files import HeldPictures, LocatedFiles
from regard_workbench.tasks.formats.reading import Data, paths_of
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import SPLITS, Task
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.located import Canvas, FigureScenes, Located, named
from regard_workbench.tasks.pictures.patches import cut, names

SCENES = {"validation": 200, "test": 500}  # how many are composed to measure on
SMALLEST, LARGEST = 1.0, 1.75  # heights of figures, as multiples of those of the files


class LocatedPictures(Task):
    """Pictures as patches, from files or composed of figures. A base class."""

    takes = ("image",)
    background: ClassVar[bool] = False  # whether class 0 is the background

    def __init__(
        self,
        data: Data | None = None,
        side: int = 32,
        patch: int = 4,
        most: int = 4,
        overlap: float = 0.0,
        clutter: int = 0,
        scenes: int = 20_000,
        bad_files: str = "stop",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data, self.whole, self.bad = data, whole, BadFiles(bad_files)
        self.side = whole_number("side", side, 1)
        self.patch = whole_number("patch", patch, 1)
        self.most = whole_number("most", most, 1)
        self.overlap = finite_number("overlap", overlap)
        if not 0 <= self.overlap <= 1:
            raise BadValue(f"overlap: expected a share from 0 to 1, got {overlap!r}.")
        self.clutter, self.seed = whole_number("clutter", clutter, 0), whole_number("seed", seed)
        self.scenes = whole_number("scenes", scenes, 1)
        self._decoded: dict[str, HeldPictures] = {}  # the pictures of files, by split
        self.known: dict[str, Any] = {}  # the names of the classes and the number of channels, once read

    def read(self, paths: list[Path]) -> tuple[dict[str, LocatedFiles[Any]], list[str], int]:
        """The pictures of each split from files of this task's own form, the names of the classes, and the channels."""
        raise NotImplementedError(f"{type(self).__name__} does not define read")

    @cached_property
    def pictures(self) -> Mapping[str, Sequence[Located] | LocatedFiles[Any]]:
        """The pictures of each split; those of files are decoded when `examples` asks for them."""
        found: Mapping[str, Sequence[Located] | LocatedFiles[Any]]
        if self.data is None:
            found, classes, channels = (
                self._scenes({split: written_digits.figures(split) for split in SPLITS}),
                [str(n) for n in range(10)],
                1,
            )
        elif (figures := load_figures(paths_of(self.data), self.seed)) is not None:
            found, channels = self._scenes(figures), 1
            count = max(max(labels) for _, labels in figures.values()) + 1
            classes = [str(number) for number in range(count)]
        else:
            found, classes, channels = self.read(paths_of(self.data))
            self.known = self.known or {"classes": classes, "channels": channels}
            if not self.whole:
                return found
            files = list(found.values())
            entries = [entry for one in files for entry in one.entries]
            every = replace(files[0], entries=entries)
            return {"validation": every, "test": every}
        if self.background:
            classes = ["background", *classes]
        self.known = self.known or {"classes": classes, "channels": channels}
        return found

    def _scenes(self, figures: Mapping[str, Figures]) -> dict[str, Sequence[Located]]:
        found: dict[str, Sequence[Located]] = {}
        for split, (drawn, labels) in figures.items():
            height = drawn.shape[1]
            sizes = (round(SMALLEST * height), min(self.side, round(LARGEST * height)))
            if sizes[0] > self.side:
                raise BadValue(f"side: expected at least {sizes[0]}, the height of a figure, got {self.side}.")
            key = ("scenes", self.seed, split)
            make = FigureScenes(drawn, tuple(labels), self.side, self.most, sizes, self.overlap, self.clutter, key)
            found[split] = Generated(SCENES.get(split, self.scenes), make, even=True)
        return found

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return list(self._known()["classes"])

    @property
    def canvas(self) -> Canvas:
        """What every picture is brought to."""
        return Canvas(self.side, int(self._known()["channels"]))

    def _known(self) -> dict[str, Any]:
        if not self.known:
            _ = self.pictures  # reads them
        return self.known

    def streams(self) -> dict[str, Patches]:
        """Patches of the canvas, row by row."""
        return {INPUTS: Patches.of(self.canvas.channels, self.side, self.side, self.patch)}

    def examples(self, split: str) -> Sequence[Located]:
        """The pictures of a split."""
        if checked_split(split) not in self.pictures:
            raise BadValue(f"data: {self.data} has nothing for {split}. It has: {', '.join(self.pictures)}.")
        part = self.pictures[split]
        if not isinstance(part, LocatedFiles):
            return part
        if split not in self._decoded:
            self._decoded[split] = part.read(self.bad)
        return self._decoded[split]

    def length(self, example: Located) -> int:
        """Patches: the same for all."""
        return (self.side // self.patch) ** 2

    def collate(self, examples: Sequence[Located], generator: torch.Generator) -> Batch:
        """Patches, and what is where, if that is known of all."""
        channels = self.canvas.channels
        pictures = np.zeros((len(examples), channels, self.side, self.side), np.float32)
        for row, example in enumerate(examples):
            pictures[row] = example.picture
        batch = Batch.of(cut(torch.from_numpy(pictures), self.streams()[INPUTS]))
        return self.with_answers(batch, examples)

    def with_answers(self, batch: Batch, examples: Sequence[Located]) -> Batch:
        """The batch with the right answers, if they are known."""
        raise NotImplementedError(f"{type(self).__name__} does not define with_answers")

    def parse(self, given: Mapping[str, str]) -> Located:
        """A picture of any size; light on dark or dark on light, it is taken as it is."""
        if set(given) != {"image"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        return named(self.canvas.fit(read_image(given["image"])), Path(given["image"]).name)

    def show(self, example: Located, batch: Batch) -> Shown:
        """The canvas, with the place of each patch."""
        spec = self.streams()[INPUTS]
        return Shown(
            self.words(example),
            names(spec),
            "patches",
            picture=self.drawn(example),
            grid=(spec.rows, spec.columns),
            streams=self.row_names(example),
        )

    def marked(self, example: Located, predicted: Any) -> Located:
        """The picture with what was found on it."""
        return replace(example, found=predicted)

    def focused(self, example: Located, predicted: Any) -> Located:
        """The same: the rows of the attention are called after what they found."""
        return self.marked(example, predicted)

    def drawn(self, example: Located) -> NDArray[np.float32]:
        """The picture as it is shown, with what was found on it, (height,width) or (height,width,3)."""
        picture = example.picture[0] if len(example.picture) == 1 else example.picture.transpose(1, 2, 0)
        return np.ascontiguousarray(picture)

    def words(self, example: Located) -> str:
        """What an example is, in words."""
        return example.name

    def row_names(self, example: Located) -> dict[str, list[str]]:
        """What the rows of a model's attention to the patches are called, by what they are."""
        return {}

    def state(self) -> dict[str, Any]:
        """The names of the classes and the number of channels."""
        return dict(self._known())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        channels = whole_number("channels", state["channels"], 1)
        self.known = {"classes": [str(name) for name in state["classes"]], "channels": channels}
