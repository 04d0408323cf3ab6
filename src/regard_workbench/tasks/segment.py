"""Saying what each pixel of a picture belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.support.arguments import whole_number
from regard.support.declared import option
from regard_workbench.tasks.answers import PixelClasses
from regard_workbench.tasks.figures.boxes_and_masks import mask_figure, tinted
from regard_workbench.tasks.formats import mask_files
from regard_workbench.tasks.formats.located_files import LocatedFiles
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.measures.mean_iou import MEAN_IOU
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.located_pictures import LocatedPictures, LocatedPresenter, Surroundings
from regard_workbench.tasks.parts.shared_options import STOP_OR_SKIP
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.located import BACKGROUND, UNCOUNTED, Canvas, Located
from regard_workbench.tasks.pictures.pixels import COLOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MaskPresenter(LocatedPresenter):
    """Shows the class of each pixel as a colour over it."""

    def picture(self, task: LocatedPictures, example: Located, batch: Batch) -> NDArray[np.float32]:
        if example.found is None:
            return super().picture(task, example, batch)
        return tinted(example.picture, np.asarray(example.found))

    def streams(self, task: LocatedPictures, example: Located) -> dict[str, list[str]]:
        """The classes, each of which attends to the patches."""
        return {"classes": task.classes}

    def words(self, task: LocatedPictures, example: Located) -> str:
        if example.pixels is None:
            return example.name
        labels = sorted(set(np.unique(example.pixels).tolist()) - {BACKGROUND, UNCOUNTED})
        return f"{example.name} with {', '.join(task.classes[label] for label in labels) or 'nothing'}"

    def answer_text(self, task: LocatedPictures, predicted: Any, example: Located) -> str:
        """The share of the picture that each class covers, the largest first."""
        pixels = example.to_file(np.asarray(predicted))
        labels, counts = np.unique(pixels, return_counts=True)
        ranked = sorted(zip(counts.tolist(), labels.tolist(), strict=True), reverse=True)
        return ", ".join(f"{task.classes[label]} {100 * count / pixels.size:.1f} %" for count, label in ranked)

    def draw(self, task: LocatedPictures, predicted: Any, example: Located, looked: Looked | None) -> Figure:
        """The picture, its mask, and what each class that was found attended to."""
        by_class = looked is not None and len(looked.weights) == len(task.classes)
        weights = [list(row) for row in looked.weights] if by_class and looked is not None else []
        return mask_figure(example.picture, np.asarray(predicted), task.classes, weights)


@task("segment")
class Segment(LocatedPictures):
    """Says for each pixel of a picture what it belongs to; without files, scenes of digits on a background.

    Files: images/x.jpg with masks/x.png, whose pixels are numbers of classes (255: not judged), in one folder or in
    folders train, val and test; or IDX files of the MNIST family, whose figures are placed into scenes. mean_iou is the
    mean over classes, the background among them, of intersection over union, over all pixels of the split.
    """

    judge = Judge(MEAN_IOU, (LOSS, ACCURACY, MEAN_IOU))
    presenter = MaskPresenter()
    tried = ("--example", "20")
    background = True
    recipe = Recipe(model="segmenter", steps=800, batch_size=16, lr=2e-3, warmup=50, reaches={"mean_iou": 0.82})

    data: Data | None = option("a folder with images and masks, or IDX files of figures", default=None)
    bad_files: str = option(
        "at a picture or a mask that cannot be read: stop, or skip it and say so", STOP_OR_SKIP, default="stop"
    )
    seed: int = option(
        "which scenes are composed, and which pictures of a folder without splits are for validation and test",
        whole_number,
        default=0,
    )

    def read(self, paths: list[Path], restored: Surroundings | None) -> tuple[dict[str, LocatedFiles[Any]], list[str]]:
        """Pictures with masks."""
        pairs_by_split, count = mask_files.load(paths, self.seed, self.bad, len(restored.classes) if restored else None)
        make = mask_files.MaskReader(count, Canvas(self.side, restored.channels if restored else COLOUR))
        splits = {split: LocatedFiles(pairs, mask_files.path_of, make) for split, pairs in pairs_by_split.items()}
        return splits, [f"class {number}" for number in range(count)]

    def answers(self) -> list[PixelClasses]:
        """A class for each pixel."""
        return [PixelClasses(len(self.classes))]

    def with_answers(self, batch: Batch, examples: Sequence[Located]) -> Batch:
        """The class of each pixel."""
        pixels = [example.pixels for example in examples if example.pixels is not None]
        if len(pixels) != len(examples):
            return batch
        targets = torch.from_numpy(np.stack(pixels)) if pixels else torch.zeros(0, self.side, self.side).long()
        counts = targets != UNCOUNTED
        targets = targets.masked_fill(~counts, 0)
        return batch.answered(targets, None if bool(counts.all()) else counts)
