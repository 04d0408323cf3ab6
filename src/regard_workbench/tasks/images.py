"""What does a picture show? Pictures in class folders, the MNIST family, or digits in small scenes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from regard.errors import BadValue
from regard.support.arguments import share, whole_number
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.figures.overlay import overlays
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.class_folders import load_pictures
from regard_workbench.tasks.formats.image_files import read_picture
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.generated.scenes import compose, strew
from regard_workbench.tasks.measures.metrics import ACCURACY, Answering, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.shown import Looked, Shown, Understood
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.augment import erased, flipped, shifted
from regard_workbench.tasks.pictures.examples import LabelledPicture, PictureExample, PictureFacts, PictureSet
from regard_workbench.tasks.pictures.patches import cut, fold, names
from regard_workbench.tasks.pictures.pixels import fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 20  # pixels of a scene
SIZES = (10, 14)  # pixels of a digit in it
CLUTTER = 2  # pieces of other digits around it
SCENES = {"train": 6_000, "validation": 500, "test": 1000}
DARK, BRIGHT = 0.4, 0.5  # means below and above which pictures are light on dark, or dark on light


@task("images")
class ImagesTask(Task):
    """Says what a picture shows; without files, which digit lies in a small scene, with pieces of others around it.

    A folder, zip or tar archive of class folders (optionally inside train, val and test), or of the four IDX files of
    the MNIST family. Where no pictures are for validation or test, a tenth of the training set is, by a hash. Pictures
    are brought to one square size by their shorter side, and cut at the ends of the longer.

    Args:
        data: a folder or archive of class folders, or of IDX files
        size: pixels of a side; None: IDX files as they are, others as the first picture, at most 64
        patch: pixels of a patch's side, which divides the size
        shift: in training, move pictures by up to so many pixels
        flip: in training, show every other picture in a mirror
        erase: in training, the probability that a rectangle of a picture is erased
        bad_files: at a file that cannot be read: stop, or skip it and say so
        seed: which scenes are made; which pictures are for validation and test
        whole: measure on all pictures, keep none for training; for a model trained on other data
    """

    takes = ("image",)
    tried = ("--example", "5")
    metric: ClassVar[Metric] = ACCURACY
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

    def __init__(
        self,
        data: Data | None = None,
        size: int | None = None,
        patch: int = 4,
        shift: int = 0,
        flip: bool = False,
        erase: float = 0.0,
        bad_files: str = "stop",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data, self.bad, self.whole, self.flip = data, BadFiles(bad_files), whole, flip
        self.size = None if size is None else whole_number("size", size, 1)
        self.patch = whole_number("patch", patch, 1)
        self.shift, self.erase = whole_number("shift", shift, 0), share("erase", erase)
        self.seed = whole_number("seed", seed)
        self._facts: PictureFacts | None = None
        self._splits: dict[str, PictureSet] = {}

    @functools.cached_property
    def _files(self) -> dict[str, list[LabelledPicture]]:
        """The pictures of the files; what was left out of them is said once."""
        assert self.data is not None
        # With facts restored, pictures are brought to the size that the model was trained with.
        square = self._facts is not None and self._facts.height == self._facts.width
        size = self._facts.height if square and self._facts is not None else self.size
        read = load_pictures(self.data, size, patch=self.patch, bad=self.bad, seed=self.seed)
        self.bad.tell()
        if self.whole:
            every = [one for part in read.values() for one in part]
            return {"validation": every, "test": every}
        return read

    def _labelled(self, split: str) -> list[LabelledPicture]:
        if self.data is None:
            return scenes(split, self.seed)
        if split not in self._files:
            raise BadValue(f"data: {self.data} has nothing for {split}. It has: {', '.join(self._files)}.")
        return self._files[split]

    @property
    def facts(self) -> PictureFacts:
        """What a model must know of the training set: restored, or made from it."""
        if self._facts is None:
            first = "train" if self.data is None or "train" in self._files else next(iter(self._files))
            self._facts = PictureFacts.of(self._labelled(first))
        return self._facts

    @property
    def spec(self) -> Patches:
        """The patches of a picture."""
        facts = self.facts
        sizes = (facts.channels, facts.height, facts.width, self.patch)
        return Patches.of(*sizes, mean=facts.mean, spread=facts.spread)

    def streams(self) -> dict[str, Patches]:
        """Patches, row by row."""
        return {INPUTS: self.spec}

    def answers(self) -> list[OneOf]:
        """The classes."""
        return [OneOf(len(self.facts.classes))]

    def examples(self, split: str) -> PictureSet:
        """The pictures of a split, in the order of their names."""
        if checked_split(split) not in self._splits:
            facts = self.facts
            self._splits[split] = facts.collected(self._labelled(split), split == "train")
        return self._splits[split]

    def length(self, example: PictureExample) -> int:
        """Patches: the same for all."""
        return self.spec.length or 0

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
        facts = self.facts
        if not examples:
            none = torch.zeros(0, facts.channels, facts.height, facts.width)
            return Batch.of(cut(none, self.spec), targets=torch.zeros(0, dtype=torch.long))
        pixels = torch.stack([example.pixels for example in examples])
        rows = self._rows(pixels, generator if all(example.training for example in examples) else None)
        known = [example.label for example in examples if example.label is not None]
        return Batch.of(rows, targets=torch.tensor(known) if len(known) == len(examples) else None)

    def _rows(self, pixels: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """Bytes as normalised patches, changed at random where there is a generator."""
        if generator is not None:
            pixels = shifted(pixels, self.shift, generator) if self.shift else pixels
            pixels = flipped(pixels, generator) if self.flip else pixels
        numbers = self.facts.normalized(pixels)
        if generator is not None and self.erase:
            numbers = erased(numbers, self.erase, generator)
        return cut(numbers, self.spec)

    def parse(self, given: Mapping[str, str]) -> PictureExample:
        """A picture file."""
        if set(given) != {"image"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        facts, picture = self.facts, read_picture(given["image"])
        notes = list(picture.notes)
        pixels = facts.channelled(fitted(picture.image, facts.height, facts.width))
        # Pictures of the MNIST family are light on dark, what people draw or photograph is dark on light paper.
        if facts.channels == 1 and facts.mean[0] < DARK and pixels.mean() > BRIGHT * 255:
            pixels = 255 - pixels
            notes.append("light and dark were exchanged, since the training pictures are light on dark")
        return PictureExample(torch.from_numpy(pixels.copy()), None, notes=tuple(notes))

    def understood(self, given: Mapping[str, str], example: PictureExample) -> Understood | None:
        """All patches, and notes on how the file was read."""
        pieces = names(self.spec)
        return Understood(pieces, [True] * len(pieces), list(example.notes))

    def show(self, example: PictureExample, batch: Batch) -> Shown:
        """The picture as the model reads it, with row and column of each patch."""
        words = "a picture" if example.label is None else f"a picture of class {self.decode([example.label])}"
        picture = self.facts.visible(fold(batch.inputs[:1], self.spec)[0])
        grid = (self.spec.rows, self.spec.columns)
        return Shown(words, names(self.spec), "patches", picture=picture, grid=grid)

    def draw(self, predicted: Any, example: PictureExample, looked: Looked | None) -> Figure | None:
        """The picture, and beside it where the model looked; None where it cuts other patches."""
        count = self.spec.rows * self.spec.columns
        if looked is None or len(looked.columns) != count:
            return None
        shown = self.show(example, self.collate([example], torch.Generator()))
        assert shown.picture is not None and shown.grid is not None
        weights = np.asarray(looked.weights, np.float32).reshape(-1, count).mean(0)
        return overlays(shown.picture, [str(predicted)], [weights.tolist()], shown.grid)

    def decode(self, tokens: Sequence[int]) -> str:
        """The name of a class."""
        return self.facts.classes[tokens[0]]

    def state(self) -> dict[str, Any]:
        """Classes, sizes, mean and spread."""
        return self.facts.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._facts = PictureFacts.restored(state)


@functools.cache
def scenes(split: str, seed: int) -> list[LabelledPicture]:
    """Digits of a split, each at a random place and size, with pieces of other digits where it is not."""
    pixels, shown = written_digits.images()
    figures = pixels.reshape(-1, written_digits.SIDE, written_digits.SIDE)
    own = written_digits.numbers_of(split)
    found = []
    for index in range(SCENES[split]):
        draws = Draws("images", seed, split, index)
        chosen = draws.among(own)
        scene = compose([figures[chosen]], [shown[chosen]], SIDE, SIDE, draws, sizes=SIZES)
        canvas = np.zeros_like(scene.picture)
        strew(canvas, [figures[draws.among(own)] for _ in range(CLUTTER)], CLUTTER, draws)
        picture = np.where(scene.masks[0], scene.picture, canvas)
        found.append(LabelledPicture(np.rint(picture * 255).astype(np.uint8), str(shown[chosen]), f"{split} {index}"))
    return found
