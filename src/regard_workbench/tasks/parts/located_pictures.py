"""The base of tasks that say where things are on a picture: scenes, the canvas, what is read, shown and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import finite_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.figure_files import Figures, load_figures
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.located_files import LocatedFiles
from regard_workbench.tasks.formats.reading import Data, paths_of
from regard_workbench.tasks.formats.splits import of_split
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.remembered import remembered
from regard_workbench.tasks.parts.shared_options import BAD_FILES, SEED
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import SPLITS
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.located import Canvas, FigureScenes, Located, named
from regard_workbench.tasks.pictures.patch_task import PatchPresenter, PatchTask
from regard_workbench.tasks.pictures.patches import cut
from regard_workbench.tasks.pictures.pixels import COLOUR, GREY

SCENES = {"validation": 200, "test": 500}  # how many are composed to measure on
SMALLEST, LARGEST = 1.0, 1.75  # heights of figures, as multiples of those of the files


def _part_of_ink(name: str, part: object) -> float:
    checked = finite_number(name, part)
    if not 0 <= checked <= 1:
        raise BadValue(f"{name}: expected a share from 0 to 1, got {part!r}.")
    return checked


@dataclass(frozen=True)
class Surroundings(Fitted):
    """What pictures of training are made of."""

    classes: list[str]
    channels: int


class LocatedPresenter(PatchPresenter["LocatedPictures"]):
    """Shows the canvas of a picture, and what was found on it."""

    def opened(self, task: LocatedPictures, path: str) -> Located:
        """A picture of any size; light on dark or dark on light, it is taken as it is."""
        return named(task.canvas.fit(read_image(path)), Path(path).name)

    def marked(self, task: LocatedPictures, example: Located, predicted: Any) -> Located:
        """The picture with what was found on it."""
        return replace(example, found=predicted)

    def focused(self, task: LocatedPictures, example: Located, predicted: Any) -> Located:
        """The same: the rows of the attention are called after what they found."""
        return self.marked(task, example, predicted)

    def picture(self, task: LocatedPictures, example: Located, batch: Batch) -> NDArray[np.float32]:
        picture = example.picture[0] if len(example.picture) == 1 else example.picture.transpose(1, 2, 0)
        return np.ascontiguousarray(picture)


class LocatedPictures(PatchTask):
    """Pictures as patches, from files or composed of figures. A base class."""

    presenter = LocatedPresenter()
    fitted = Kept(Surroundings)
    background: ClassVar[bool] = False  # whether class 0 is the background

    data: Data | None = option("files of pictures and of what is on them, or IDX files of figures", default=None)
    side: int = option(
        "pixels of the square that each picture is brought to, and in which it is judged", at_least(1), default=32
    )
    patch: int = option(
        "pixels of a patch's side; patches are the positions that a model attends to", at_least(1), default=4
    )
    most: int = option("the largest number of figures in a scene", at_least(1), default=4)
    overlap: float = option(
        "the largest share of a figure's ink that others may lie on, in scenes", _part_of_ink, default=0.0
    )
    clutter: int = option("pieces of figures strewn over each scene", at_least(0), default=0)
    scenes: int = option("how many scenes are composed for training", at_least(1), default=20_000)
    bad_files: str = BAD_FILES
    seed: int = SEED
    whole: bool = option(
        "measure on all pictures of the files, keep none for training; for a model trained on other data",
        default=False,
        last=True,
    )

    def read(self, paths: list[Path], restored: Surroundings | None) -> tuple[dict[str, LocatedFiles[Any]], list[str]]:
        """The pictures of each split from files of this task's own form, and the names of the classes.

        `restored` is what a model was trained with, if there is one.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define read")

    @cached_property
    def bad(self) -> BadFiles:
        """What to do about files that cannot be read, and what is to be said of them."""
        return BadFiles(self.bad_files)

    @cached_property
    def _read(self) -> tuple[Mapping[str, Sequence[Located] | LocatedFiles[Any]], Surroundings]:
        """The pictures of each split, and what they are made of."""
        background = ["background"] if self.background else []
        if self.data is None:
            scenes = self._scenes({split: written_digits.figures(split) for split in SPLITS})
            return scenes, Surroundings([*background, *map(str, range(written_digits.CLASSES))], GREY)
        paths = paths_of(self.data)
        figures = load_figures(paths, self.seed)
        if figures is not None:
            count = max(max(labels) for _, labels in figures.values()) + 1
            return self._scenes(figures), Surroundings([*background, *map(str, range(count))], GREY)
        splits, classes = self.read(paths, vars(self).get("fitted"))
        if self.whole:
            every = replace(
                next(iter(splits.values())), entries=[e for pictures in splits.values() for e in pictures.entries]
            )
            splits = {"validation": every, "test": every}
        return splits, Surroundings(classes, COLOUR)

    def fit(self) -> Surroundings:
        return self._read[1]

    @property
    def pictures(self) -> Mapping[str, Sequence[Located] | LocatedFiles[Any]]:
        """The pictures of each split; those of files are decoded when `examples` asks for them."""
        return self._read[0]

    def _scenes(self, figures: Mapping[str, Figures]) -> dict[str, Sequence[Located]]:
        scenes: dict[str, Sequence[Located]] = {}
        for split, (drawn, labels) in figures.items():
            height = drawn.shape[1]
            sizes = (round(SMALLEST * height), min(self.side, round(LARGEST * height)))
            if sizes[0] > self.side:
                raise BadValue(f"side: expected at least {sizes[0]}, the height of a figure, got {self.side}.")
            key = ("scenes", self.seed, split)
            make = FigureScenes(drawn, tuple(labels), self.side, self.most, sizes, self.overlap, self.clutter, key)
            scenes[split] = Generated(SCENES.get(split, self.scenes), make, even=True)
        return scenes

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return self.fitted.classes

    @property
    def canvas(self) -> Canvas:
        """What every picture is brought to."""
        return Canvas(self.side, self.fitted.channels)

    @property
    def spec(self) -> Patches:
        """Patches of the canvas, row by row."""
        return Patches.of(self.fitted.channels, self.side, self.side, self.patch)

    @remembered
    def examples(self, split: str) -> Sequence[Located]:
        """The pictures of a split."""
        pictures = of_split(self.pictures, split, self.data)
        return pictures.read(self.bad) if isinstance(pictures, LocatedFiles) else pictures

    def collate(self, examples: Sequence[Located], generator: torch.Generator) -> Batch:
        """Patches, and what is where, if that is known of all."""
        pictures = np.zeros((len(examples), self.fitted.channels, self.side, self.side), np.float32)
        for row, example in enumerate(examples):
            pictures[row] = example.picture
        batch = Batch.of(cut(torch.from_numpy(pictures), self.spec))
        return self.with_answers(batch, examples)

    def with_answers(self, batch: Batch, examples: Sequence[Located]) -> Batch:
        """The batch with the right answers, if they are known."""
        raise NotImplementedError(f"{type(self).__name__} does not define with_answers")
