"""Finding things on pictures: a set of labelled boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import Boxes
from regard_workbench.tasks.answers.boxes import COLUMNS, FoundBox
from regard_workbench.tasks.figures.boxes_and_masks import box_figure, outlined
from regard_workbench.tasks.formats import coco
from regard_workbench.tasks.formats.located_files import LocatedFiles
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.measures.average_precision import MAP, MAP_50
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.located_pictures import LocatedPictures, LocatedPresenter, Surroundings
from regard_workbench.tasks.parts.shared_options import STOP_OR_SKIP
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.located import Canvas, Located
from regard_workbench.tasks.pictures.pixels import COLOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SURE = 0.5  # the least score of a box that is printed or drawn


class BoxPresenter(LocatedPresenter):
    """Shows the boxes that are sure enough."""

    def picture(self, task: LocatedPictures, example: Located, batch: Batch) -> NDArray[np.float32]:
        if example.found is None:
            return super().picture(task, example, batch)
        return outlined(example.picture, [box["box"] for box in _sure(example.found)])

    def words(self, task: LocatedPictures, example: Located) -> str:
        if example.boxes is None:
            return example.name
        return f"{example.name} with {', '.join(task.classes[label] for label in example.labels) or 'nothing'}"

    def streams(self, task: LocatedPictures, example: Located) -> dict[str, list[str]]:
        """The queries, called after what they found."""
        if example.found is None:
            return {}
        names = {box["query"]: _scored(task, box) if box["score"] >= SURE else "nothing" for box in example.found}
        return {"queries": [f"query {number}: {names[number]}" for number in sorted(names)]}

    def answer_text(self, task: LocatedPictures, predicted: Any, example: Located) -> str:
        """A line for each box: its class, its score, and left, top, right, bottom in pixels of the file."""
        boxes = _sure(predicted)
        if not boxes:
            best = max((box["score"] for box in predicted), default=0.0)
            return f"nothing with a score of at least {SURE:g} (the best is {best:.2f})"
        return "\n".join(
            f"{task.classes[box['label']]}  {box['score']:.2f}  {example.in_file(box['box'])}" for box in boxes
        )

    def draw(self, task: LocatedPictures, predicted: Any, example: Located, looked: Looked | None) -> Figure:
        """The picture with its boxes, and what each box's query attended to as shades of its colour."""
        boxes = _sure(predicted)
        weights: list[list[float]] = []
        if looked is not None and len(looked.weights) == len(predicted):
            weights = [list(looked.weights[box["query"]]) for box in boxes]
        names = [_scored(task, box) for box in boxes]
        return box_figure(example.picture, [box["box"] for box in boxes], names, weights)


def _sure(boxes: Sequence[FoundBox]) -> list[FoundBox]:
    """The boxes that are sure enough to be shown."""
    return [box for box in boxes if box["score"] >= SURE]


def _scored(task: LocatedPictures, box: FoundBox) -> str:
    """The class of a box, and how sure it is."""
    return f"{task.classes[box['label']]} {box['score']:.2f}"


@task("detect")
class Detect(LocatedPictures):
    """Finds what is on a picture: a box, a class and a score for each thing; without files, scenes of digits.

    Files: COCO's annotations (a .json with images, annotations, categories) and the folder of their pictures; or IDX
    files of the MNIST family, whose figures are placed into scenes. map_50 and map are COCO's: mean average precision
    at an overlap of 0.5, and over overlaps of 0.50, 0.55, … 0.95.
    """

    judge = Judge.by(MAP_50, MAP)
    presenter = BoxPresenter()
    tried = ("--example", "11")
    recipe = Recipe(
        model="detector",
        steps=1200,
        batch_size=16,
        lr=2e-3,
        warmup=50,
        models={"detector": "detector(norm=batch)"},
        reaches={"map_50": 0.9, "map": 0.65},
    )

    data: Data | None = option(
        "annotation files and a folder of pictures, a folder that holds both, or IDX files of figures", default=None
    )
    side: int = option("pixels of the square that each picture is brought to", at_least(1), default=32)
    bad_files: str = option(
        "at a picture or a box that cannot be read: stop, or skip it and say so", STOP_OR_SKIP, default="stop"
    )
    seed: int = option(
        "which scenes are composed, and which pictures of a file without splits are for validation and test",
        whole_number,
        default=0,
    )

    def read(self, paths: list[Path], restored: Surroundings | None) -> tuple[dict[str, LocatedFiles[Any]], list[str]]:
        """Pictures with COCO's annotations."""
        images_by_split, categories = coco.load(paths, self.seed, self.bad)
        names = restored.classes if restored else categories
        strange = [name for name in categories if name not in names]
        if strange:
            raise BadValue(
                f"data: {self.data} has the category {strange[0]!r}, which this run was not trained on. It knows: "
                f"{', '.join(names[:12])}."
            )
        numbers = {name: number for number, name in enumerate(names)}
        make = coco.CocoReader(numbers, Canvas(self.side, restored.channels if restored else COLOUR))
        splits = {split: LocatedFiles(images, coco.path_of, make) for split, images in images_by_split.items()}
        return splits, categories

    def answers(self) -> list[Boxes]:
        """Labelled boxes."""
        return [Boxes(len(self.classes))]

    def with_answers(self, batch: Batch, examples: Sequence[Located]) -> Batch:
        """The boxes of each picture, padded to the most of them."""
        boxes = [example.boxes for example in examples if example.boxes is not None]
        if len(boxes) != len(examples):
            return batch
        most = max(map(len, boxes), default=0)
        targets = torch.zeros(len(examples), max(1, most), COLUMNS)
        keep = torch.zeros(targets.shape[:2], dtype=torch.bool)
        for row, (example, theirs) in enumerate(zip(examples, boxes, strict=True)):
            count = len(theirs)
            targets[row, :count, 0] = torch.tensor(example.labels, dtype=torch.float32)
            targets[row, :count, 1:5] = torch.from_numpy(theirs)
            targets[row, :count, 5] = torch.tensor(example.crowd or (False,) * count, dtype=torch.float32)
            keep[row, :count] = True
        return batch.answered(targets, keep)
