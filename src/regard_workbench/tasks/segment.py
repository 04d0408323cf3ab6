"""Saying what each pixel of a picture belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard_workbench.tasks.answers import PixelClasses
from regard_workbench.tasks.figures.boxes_and_masks import mask_figure, tinted
from regard_workbench.tasks.formats import mask_files
from regard_workbench.tasks.formats.located_files import LocatedFiles
from regard_workbench.tasks.measures.mean_iou import MEAN_IOU
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, Metric
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.located_pictures import LocatedPictures
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.located import BACKGROUND, UNCOUNTED, Canvas, Located

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@task("segment")
class Segment(LocatedPictures):
    """Says for each pixel of a picture what it belongs to; without files, scenes of digits on a background.

    Files: images/x.jpg with masks/x.png, whose pixels are numbers of classes (255: not judged), in one folder or in
    folders train, val and test; or IDX files of the MNIST family, whose figures are placed into scenes. mean_iou is the
    mean over classes, the background among them, of intersection over union, over all pixels of the split.

    Args:
        data: a folder with images and masks, or IDX files of figures
        side: pixels of the square that each picture is brought to, and in which it is judged
        patch: pixels of a patch's side; patches are the positions that a model attends to
        most: the largest number of figures in a scene
        overlap: the largest share of a figure's ink that others may lie on, in scenes
        clutter: pieces of figures strewn over each scene
        scenes: how many scenes are composed for training
        bad_files: at a picture or a mask that cannot be read: stop, or skip it and say so
        seed: which scenes are composed, and which pictures of a folder without splits are for validation and test
        whole: measure on all pictures of the files, keep none for training; for a model trained on other data
    """

    tried = ("--example", "20")
    metric: ClassVar[Metric] = MEAN_IOU
    background = True
    recipe = Recipe(model="segmenter", steps=800, batch_size=16, lr=2e-3, warmup=50, reaches={"mean_iou": 0.82})

    def read(self, paths: list[Path]) -> tuple[dict[str, LocatedFiles[Any]], list[str], int]:
        """Pictures with masks."""
        known = len(self.known["classes"]) if self.known else None
        parts, count = mask_files.load(paths, self.seed, self.bad, known)
        canvas = Canvas(self.side, int(self.known.get("channels", 3)))
        make = mask_files.MaskReader(count, canvas)
        found = {split: LocatedFiles(pairs, mask_files.path_of, make) for split, pairs in parts.items()}
        names = [f"class {number}" for number in range(count)]
        return found, names, 3

    def answers(self) -> list[PixelClasses]:
        """A class for each pixel."""
        return [PixelClasses(len(self.classes))]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, the share of right pixels, and the mean intersection over union."""
        return (LOSS, ACCURACY, MEAN_IOU)

    def with_answers(self, batch: Batch, examples: Sequence[Located]) -> Batch:
        """The class of each pixel."""
        known = [example.pixels for example in examples if example.pixels is not None]
        if len(known) != len(examples):
            return batch
        targets = torch.from_numpy(np.stack(known)) if known else torch.zeros(0, self.side, self.side).long()
        counts = targets != UNCOUNTED
        targets = targets.masked_fill(~counts, 0)
        return batch.answered(targets, None if bool(counts.all()) else counts)

    def drawn(self, example: Located) -> NDArray[np.float32]:
        """The picture, with a colour over the pixels of each class that was found."""
        if example.found is None:
            return super().drawn(example)
        return tinted(example.picture, np.asarray(example.found))

    def row_names(self, example: Located) -> dict[str, list[str]]:
        """The classes, each of which attends to the patches."""
        return {"classes": self.classes}

    def words(self, example: Located) -> str:
        """What is on a picture, where that is known."""
        if example.pixels is None:
            return example.name
        on_it = sorted(set(np.unique(example.pixels).tolist()) - {BACKGROUND, UNCOUNTED})
        return f"{example.name} with {', '.join(self.classes[label] for label in on_it) or 'nothing'}"

    def answer_text(self, predicted: Any, example: Located) -> str:
        """The share of the picture that each class covers, the largest first."""
        pixels = example.to_file(np.asarray(predicted))
        labels, counts = np.unique(pixels, return_counts=True)
        ranked = sorted(zip(counts.tolist(), labels.tolist(), strict=True), reverse=True)
        return ", ".join(f"{self.classes[label]} {100 * count / pixels.size:.1f} %" for count, label in ranked)

    def draw(self, predicted: Any, example: Located, looked: Looked | None) -> Figure:
        """The picture, its mask, and what each class that was found attended to."""
        known = looked is not None and len(looked.weights) == len(self.classes)
        weights = [list(row) for row in looked.weights] if known and looked is not None else []
        return mask_figure(example.picture, np.asarray(predicted), self.classes, weights)
