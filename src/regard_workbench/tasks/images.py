"""What does a picture show? Pictures in class folders, the MNIST family, or digits in small scenes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.support.arguments import share, whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.figures.overlay import overlays
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.class_folders import load_pictures
from regard_workbench.tasks.formats.image_files import read_picture
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import checked_split, of_split
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.generated.scenes import compose, strew
from regard_workbench.tasks.measures.metrics import Answering
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.remembered import remembered
from regard_workbench.tasks.parts.shared_options import BAD_FILES, PATCH
from regard_workbench.tasks.parts.shown import Looked, Understood
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.augment import erased, flipped, shifted
from regard_workbench.tasks.pictures.examples import LabelledPicture, PictureExample, PictureFacts, PictureSet
from regard_workbench.tasks.pictures.patch_task import PatchPresenter, PatchTask
from regard_workbench.tasks.pictures.patches import cut, fold, names
from regard_workbench.tasks.pictures.pixels import fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 20  # pixels of a scene
SIZES = (10, 14)  # pixels of a digit in it
CLUTTER = 2  # pieces of other digits around it
SCENES = {"train": 6_000, "validation": 500, "test": 1000}
DARK, BRIGHT = 0.4, 0.5  # means below and above which pictures are light on dark, or dark on light


class ImagePresenter(PatchPresenter["ImagesTask"]):
    """Reads pictures, and shows them as the model reads them."""

    def opened(self, task: ImagesTask, path: str) -> PictureExample:
        facts, file = task.fitted, read_picture(path)
        notes = list(file.notes)
        pixels = facts.channelled(fitted(file.image, facts.height, facts.width))
        # Pictures of the MNIST family are light on dark, what people draw or photograph is dark on light paper.
        if facts.channels == 1 and facts.mean[0] < DARK and pixels.mean() > BRIGHT * 255:
            pixels = 255 - pixels
            notes.append("light and dark were exchanged, since the training pictures are light on dark")
        return PictureExample(torch.from_numpy(pixels.copy()), None, notes=tuple(notes))

    def understood(self, task: ImagesTask, given: Mapping[str, str], example: PictureExample) -> Understood:
        """All patches, and notes on how the file was read."""
        pieces = names(task.spec)
        return Understood(pieces, [True] * len(pieces), list(example.notes))

    def words(self, task: ImagesTask, example: PictureExample) -> str:
        return "a picture" if example.label is None else f"a picture of class {task.decode([example.label])}"

    def picture(self, task: ImagesTask, example: PictureExample, batch: Batch) -> NDArray[np.float32]:
        return task.fitted.visible(fold(batch.inputs[:1], task.spec)[0])

    def draw(self, task: ImagesTask, predicted: Any, example: PictureExample, looked: Looked | None) -> Figure | None:
        """The picture, and beside it where the model looked; None where it cuts other patches."""
        spec = task.spec
        if looked is None or len(looked.columns) != spec.length:
            return None
        picture = self.picture(task, example, task.collate([example], torch.Generator()))
        weights = np.asarray(looked.weights, np.float32).reshape(-1, spec.length).mean(0)
        return overlays(picture, [str(predicted)], [weights.tolist()], (spec.rows, spec.columns))

    def decode(self, task: ImagesTask, tokens: Sequence[int]) -> str:
        """The name of a class."""
        return task.fitted.classes[tokens[0]]


@task("images")
class ImagesTask(PatchTask):
    """Says what a picture shows; without files, which digit lies in a small scene, with pieces of others around it.

    A folder, zip or tar archive of class folders (optionally inside train, val and test), or of the four IDX files of
    the MNIST family. Where no pictures are for validation or test, a tenth of the training set is, by a hash. Pictures
    are brought to one square size by their shorter side, and cut at the ends of the longer.
    """

    presenter = ImagePresenter()
    fitted = Kept(PictureFacts)
    tried = ("--example", "5")
    recipe = Recipe(
        model="cnn-attention",
        steps=700,
        batch_size=64,
        lr=2e-3,
        warmup=50,
        models={"cnn-attention": "cnn-attention(dim=64)", "vit": "vit(dim=64, layers=3)"},
        compared=("vit", "cnn-attention", "cnn-attention(channel=false, spatial=false, self_attention=false)"),
        reaches={"accuracy": 0.95},
    )

    data: Data | None = option("a folder or archive of class folders, or of IDX files", default=None)
    size: int | None = option(
        "pixels of a side; None: IDX files as they are, others as the first picture, at most 64",
        at_least(1),
        default=None,
    )
    patch: int = PATCH
    shift: int = option("in training, move pictures by up to so many pixels", at_least(0), default=0)
    flip: bool = option("in training, show every other picture in a mirror", default=False)
    erase: float = option("in training, the probability that a rectangle of a picture is erased", share, default=0.0)
    bad_files: str = BAD_FILES
    seed: int = option("which scenes are made; which pictures are for validation and test", whole_number, default=0)
    whole: bool = option(
        "measure on all pictures, keep none for training; for a model trained on other data", default=False
    )

    @functools.cached_property
    def _files(self) -> dict[str, list[LabelledPicture]]:
        """The pictures of the files; what was left out of them is said once."""
        assert self.data is not None
        # With facts restored, pictures are brought to the size that the model was trained with.
        restored: PictureFacts | None = vars(self).get("fitted")
        size = restored.height if restored is not None and restored.height == restored.width else self.size
        bad = BadFiles(self.bad_files)
        splits = load_pictures(self.data, size, patch=self.patch, bad=bad, seed=self.seed)
        bad.tell()
        if self.whole:
            every = [picture for pictures in splits.values() for picture in pictures]
            return {"validation": every, "test": every}
        return splits

    def _labelled(self, split: str) -> list[LabelledPicture]:
        return scenes(split, self.seed) if self.data is None else of_split(self._files, split, self.data)

    def fit(self) -> PictureFacts:
        first = "train" if self.data is None or "train" in self._files else next(iter(self._files))
        return PictureFacts.of(self._labelled(first))

    @property
    def spec(self) -> Patches:
        """The patches of a picture."""
        facts = self.fitted
        sizes = (facts.channels, facts.height, facts.width, self.patch)
        return Patches.of(*sizes, mean=facts.mean, spread=facts.spread)

    def answers(self) -> list[OneOf]:
        """The classes."""
        return [OneOf(len(self.fitted.classes))]

    @remembered
    def examples(self, split: str) -> PictureSet:
        """The pictures of a split, in the order of their names."""
        return self.fitted.collected(self._labelled(checked_split(split)), split == "train")

    def batch(
        self,
        examples: Sequence[PictureExample],
        chosen: Sequence[int],
        generator: torch.Generator,
        model: Answering | None = None,
    ) -> Batch:
        """A batch of chosen pictures, by one indexing where they lie side by side."""
        if not isinstance(examples, PictureSet):
            return super().batch(examples, chosen, generator, model)
        index = torch.as_tensor(chosen, dtype=torch.long)
        training = examples.training and (self.shift or self.flip or self.erase)
        rows = self._rows(examples.pixels[index], generator if training else None)
        return Batch.of(rows, targets=examples.labels[index])

    def collate(self, examples: Sequence[PictureExample], generator: torch.Generator) -> Batch:
        """Patches and classes; training pictures are changed at random where the options say so."""
        facts = self.fitted
        if not examples:
            none = torch.zeros(0, facts.channels, facts.height, facts.width)
            return Batch.of(cut(none, self.spec), targets=torch.zeros(0, dtype=torch.long))
        pixels = torch.stack([example.pixels for example in examples])
        rows = self._rows(pixels, generator if all(example.training for example in examples) else None)
        labels = [example.label for example in examples if example.label is not None]
        return Batch.of(rows, targets=torch.tensor(labels) if len(labels) == len(examples) else None)

    def _rows(self, pixels: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """Bytes as normalised patches, changed at random where there is a generator."""
        if generator is not None:
            pixels = shifted(pixels, self.shift, generator) if self.shift else pixels
            pixels = flipped(pixels, generator) if self.flip else pixels
        numbers = self.fitted.normalized(pixels)
        if generator is not None and self.erase:
            numbers = erased(numbers, self.erase, generator)
        return cut(numbers, self.spec)


@functools.cache
def scenes(split: str, seed: int) -> list[LabelledPicture]:
    """Digits of a split, each at a random place and size, with pieces of other digits where it is not."""
    pixels, shown = written_digits.images()
    figures = pixels.reshape(-1, written_digits.SIDE, written_digits.SIDE)
    numbers = written_digits.numbers_of(split)
    labelled = []
    for index in range(SCENES[split]):
        draws = Draws("images", seed, split, index)
        chosen = draws.among(numbers)
        scene = compose([figures[chosen]], [shown[chosen]], SIDE, SIDE, draws, sizes=SIZES)
        canvas = np.zeros_like(scene.picture)
        strew(canvas, [figures[draws.among(numbers)] for _ in range(CLUTTER)], CLUTTER, draws)
        picture = np.where(scene.masks[0], scene.picture, canvas)
        labelled.append(
            LabelledPicture(np.rint(picture * 255).astype(np.uint8), str(shown[chosen]), f"{split} {index}")
        )
    return labelled


class ClassPictures(Task):
    """The base of tasks that make something else of pictures of classes: scikit-learn's digits, or those of files.

    Files are read as the task `images` reads them: a subclass calls `read_with` when its options are checked.
    """

    data: Data | None = option("a folder or archive of class folders, or of IDX files", default=None)
    bad_files: str = option("at a file that cannot be read: stop, or skip it and say so", default="stop", last=True)
    seed: int = option("which pictures are for validation and test", default=0, last=True)

    def read_with(self, **options: Any) -> None:
        """Have the files, where there are some, read by the task `images` with these options, which it checks."""
        self.source: ImagesTask | None = None
        if self.data is not None:
            common: dict[str, Any] = {"data": self.data, "patch": 1, "bad_files": self.bad_files, "seed": self.seed}
            self.source = ImagesTask(**common, **options)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(map(str, range(written_digits.CLASSES))) if self.source is None else self.source.fitted.classes

    def pictures(self, split: str) -> PictureSet:
        """The pictures of a split."""
        return _digits(checked_split(split)) if self.source is None else self.source.examples(split)

    def decode(self, tokens: Sequence[int]) -> str:
        """The name of a class."""
        return self.classes[tokens[0]]

    def state(self) -> dict[str, Any]:
        """What is known of the files."""
        return {} if self.source is None else self.source.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore it, so that the files are not needed."""
        if self.source is not None:
            self.source.restore(state)


@functools.cache
def _digits(split: str) -> PictureSet:
    """The digits of a split as pictures of bytes."""
    grey, digits = written_digits.figures(split)
    return PictureSet(torch.from_numpy(grey[:, None]), torch.tensor(digits))
