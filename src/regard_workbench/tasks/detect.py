"""Finding things on pictures: a set of labelled boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.answers import Boxes
from regard_workbench.tasks.answers.boxes import COLUMNS, FoundBox
from regard_workbench.tasks.figures.boxes_and_masks import box_figure, outlined
from regard_workbench.tasks.formats import coco
from regard_workbench.tasks.formats.located_files import LocatedFiles
from regard_workbench.tasks.measures.average_precision import MAP, MAP_50
from regard_workbench.tasks.measures.metrics import LOSS, Metric
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.located_pictures import LocatedPictures
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.located import Canvas, Located

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SURE = 0.5  # the least score of a box that is printed or drawn


@task("detect")
class Detect(LocatedPictures):
    """Finds what is on a picture: a box, a class and a score for each thing; without files, scenes of digits.

    Files: COCO's annotations (a .json with images, annotations, categories) and the folder of their pictures; or IDX
    files of the MNIST family, whose figures are placed into scenes. map_50 and map are COCO's: mean average precision
    at an overlap of 0.5, and over overlaps of 0.50, 0.55, … 0.95.

    Args:
        data: annotation files and a folder of pictures, a folder that holds both, or IDX files of figures
        side: pixels of the square that each picture is brought to
        patch: pixels of a patch's side; patches are the positions that a model attends to
        most: the largest number of figures in a scene
        overlap: the largest share of a figure's ink that others may lie on, in scenes
        clutter: pieces of figures strewn over each scene
        scenes: how many scenes are composed for training
        bad_files: at a picture or a box that cannot be read: stop, or skip it and say so
        seed: which scenes are composed, and which pictures of a file without splits are for validation and test
        whole: measure on all pictures of the files, keep none for training; for a model trained on other data
    """

    tried = ("--example", "11")
    metric: ClassVar[Metric] = MAP_50
    recipe = Recipe(
        model="detector",
        steps=1200,
        batch_size=16,
        lr=2e-3,
        warmup=50,
        models={"detector": "detector(norm=batch)"},
        reaches={"map_50": 0.9, "map": 0.65},
    )

    def read(self, paths: list[Path]) -> tuple[dict[str, LocatedFiles[Any]], list[str], int]:
        """Pictures with COCO's annotations."""
        parts, categories = coco.load(paths, self.seed, self.bad)
        known = list(self.known.get("classes", categories))
        strange = [name for name in categories if name not in known]
        if strange:
            raise BadValue(
                f"data: {self.data} has the category {strange[0]!r}, which this run was not trained on. It knows: "
                f"{', '.join(known[:12])}."
            )
        classes = {name: number for number, name in enumerate(known)}
        canvas = Canvas(self.side, int(self.known.get("channels", 3)))
        make = coco.CocoReader(classes, canvas)
        found = {split: LocatedFiles(images, coco.path_of, make) for split, images in parts.items()}
        return found, categories, 3

    def answers(self) -> list[Boxes]:
        """Labelled boxes."""
        return [Boxes(len(self.classes))]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss and mean average precision."""
        return (LOSS, MAP_50, MAP)

    def with_answers(self, batch: Batch, examples: Sequence[Located]) -> Batch:
        """The boxes of each picture, padded to the most of them."""
        boxes = [example.boxes for example in examples if example.boxes is not None]
        if len(boxes) != len(examples):
            return batch
        most = max((len(one) for one in boxes), default=0)
        targets = torch.zeros(len(examples), max(1, most), COLUMNS)
        keep = torch.zeros(targets.shape[:2], dtype=torch.bool)
        for row, (example, theirs) in enumerate(zip(examples, boxes, strict=True)):
            count = len(theirs)
            targets[row, :count, 0] = torch.tensor(example.labels, dtype=torch.float32)
            targets[row, :count, 1:5] = torch.from_numpy(theirs)
            targets[row, :count, 5] = torch.tensor(example.crowd or (False,) * count, dtype=torch.float32)
            keep[row, :count] = True
        return batch.answered(targets, keep)

    def words(self, example: Located) -> str:
        """What is on a picture, where that is known."""
        if example.boxes is None:
            return example.name
        return f"{example.name} with {', '.join(self.classes[label] for label in example.labels) or 'nothing'}"

    def found(self, predicted: Sequence[FoundBox]) -> list[FoundBox]:
        """The boxes that are sure enough to be shown."""
        return [one for one in predicted if one["score"] >= SURE]

    def drawn(self, example: Located) -> NDArray[np.float32]:
        """The picture, with the boxes that were found."""
        if example.found is None:
            return super().drawn(example)
        return outlined(example.picture, [one["box"] for one in self.found(example.found)])

    def row_names(self, example: Located) -> dict[str, list[str]]:
        """The queries, called after what they found."""
        if example.found is None:
            return {}
        names = {
            one["query"]: f"{self.classes[one['label']]} {one['score']:.2f}" if one["score"] >= SURE else "nothing"
            for one in example.found
        }
        return {"queries": [f"query {number}: {names[number]}" for number in sorted(names)]}

    def answer_text(self, predicted: Any, example: Located) -> str:
        """A line for each box: its class, its score, and left, top, right, bottom in pixels of the file."""
        found = self.found(predicted)
        if not found:
            best = max((one["score"] for one in predicted), default=0.0)
            return f"nothing with a score of at least {SURE:g} (the best is {best:.2f})"
        lines = []
        for one in found:
            corners = ", ".join(map(str, example.in_file(one["box"])))
            lines.append(f"{self.classes[one['label']]}  {one['score']:.2f}  [{corners}]")
        return "\n".join(lines)

    def draw(self, predicted: Any, example: Located, looked: Looked | None) -> Figure:
        """The picture with its boxes, and what each box's query attended to as shades of its colour."""
        found = self.found(predicted)
        names = [f"{self.classes[one['label']]} {one['score']:.2f}" for one in found]
        weights: list[list[float]] = []
        if looked is not None and len(looked.weights) == len(predicted):
            weights = [list(looked.weights[one["query"]]) for one in found]
        return box_figure(example.picture, [one["box"] for one in found], names, weights)
