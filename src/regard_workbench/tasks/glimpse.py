"""Look step by step: one digit somewhere on a cluttered canvas."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.answers import Answer, OneOf, OneOfAfterEach
from regard_workbench.tasks.figures.path import path_figure
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.scenes import compose, resized, strew
from regard_workbench.tasks.images import ImagesTask
from regard_workbench.tasks.measures.metrics import LOSS, Answered, Answering, Counts, Mean, Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.shown import Looked, Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures.digit_pictures import light_on_dark
from regard_workbench.tasks.pictures.examples import PictureSet, brightness
from regard_workbench.tasks.pictures.patches import cut, names
from regard_workbench.tasks.pictures.written_digits import CLASSES, SIDE, figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grey = NDArray[np.float32]
ROUNDS = {"train": 16, "validation": 2, "test": 4}  # scenes that each image is placed in


HELD = 2**26  # bytes of scenes that are kept, since each is read again in every epoch


class CanvasExample(NamedTuple):
    """A picture (height,width) from 0 to 1, and the class of what lies on it."""

    picture: Grey
    label: int | None  # None where a user gave the picture


def _class_of(predicted: Any) -> int:
    found: int = predicted["class"] if isinstance(predicted, dict) else predicted
    return found


def _right(answered: Answered) -> tuple[float, float]:
    assert answered.batch.targets is not None
    said = [_class_of(one) for one in answered.predicted]
    right = sum(one == target for one, target in zip(said, answered.batch.targets.tolist(), strict=True))
    return float(right), float(len(said))


ACCURACY = Mean("accuracy", unit="share", look=_right)


def _right_after_each(answered: Answered) -> dict[str, float]:
    """How many answers were right after each glimpse, by its number from 1 on."""
    assert answered.batch.targets is not None
    said = [one["after_each"] for one in answered.predicted]
    targets = answered.batch.targets.tolist()
    return {
        str(number + 1): float(sum(one[number] == target for one, target in zip(said, targets, strict=True)))
        for number in range(len(said[0]))
    } | {"examples": float(len(said))}


AFTER_EACH = Counts("accuracy after each glimpse", look=_right_after_each, total="examples")


@task("glimpse")
class GlimpseTask(Task):
    """Says which digit lies on a canvas between pieces of others: scikit-learn's digits, enlarged, at random places.

    With files, their pictures (as the task `images` reads them, in grey) lie on the canvas instead. `regard evaluate`
    also measures the accuracy after each glimpse, for models that look step by step.

    Args:
        data: a folder or archive of class folders, or of IDX files
        canvas: pixels of the picture's side
        smallest: pixels of the smallest digit's or picture's side
        largest: pixels of the largest one's side
        clutter: pieces of others on the canvas
        patch: pixels of a patch's side; the places to look at are the patches
        bad_files: at a file that cannot be read: stop, or skip it and say so
        seed: of the scenes
        whole: measure on all pictures, keep none for training; for a model trained on other data
    """

    metric = ACCURACY
    takes = ("image",)
    tried = ("--example", "25")
    recipe = Recipe(
        model="glimpse",
        steps=3000,
        batch_size=64,
        lr=2e-3,
        warmup=50,
        compared=("glimpse", "glimpse(policy=random)", "glimpse(policy=centre)"),
        reaches={"accuracy": 0.88},
    )

    def __init__(
        self,
        data: Data | None = None,
        canvas: int = 32,
        smallest: int = 14,
        largest: int = 16,
        clutter: int = 4,
        patch: int = 4,
        bad_files: str = "stop",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.canvas, self.seed = whole_number("canvas", canvas, SIDE), seed
        self.smallest = whole_number("smallest", smallest, SIDE)
        self.largest = whole_number("largest", largest, SIDE)
        if not self.smallest <= self.largest <= self.canvas:
            raise BadValue(
                f"smallest, largest: expected {SIDE} ≤ smallest ≤ largest ≤ canvas, got {smallest}, {largest} and "
                f"{canvas}."
            )
        self.clutter = whole_number("clutter", clutter, 0)
        self.source: ImagesTask | None = None
        if data is not None:
            self.source = ImagesTask(data, self.largest, 1, bad_files=bad_files, seed=seed, whole=whole)
        self.spec = Patches.of(channels=1, height=canvas, width=canvas, side=whole_number("patch", patch, 1))
        self._made: dict[tuple[str, int], NDArray[np.uint8]] = {}

    def streams(self) -> dict[str, Patches]:
        """The canvas as patches."""
        return {"inputs": self.spec}

    @property
    def classes(self) -> tuple[str, ...]:
        """What can lie on the canvas."""
        return tuple(map(str, range(CLASSES))) if self.source is None else self.source.facts.classes

    def answers(self) -> list[Answer]:
        """The class after each glimpse, or once."""
        return [OneOfAfterEach(len(self.classes)), OneOf(len(self.classes))]

    def metrics(self) -> tuple[Metric, ...]:
        return (LOSS, ACCURACY)

    def examples(self, split: str) -> Sequence[CanvasExample]:
        """Each picture of a split in several scenes, always the same ones."""
        pictures = _digits(checked_split(split)) if self.source is None else self.source.examples(split)
        return Generated(
            ROUNDS[split] * len(pictures), functools.partial(self._scene, split=split, pictures=pictures), even=True
        )

    def _scene(self, number: int, split: str, pictures: PictureSet) -> CanvasExample:
        key = split, number
        found = self._made.get(key)
        if found is None:
            found = (255 * self._composed(number, split, pictures)).round().astype(np.uint8)
            if len(self._made) * found.nbytes < HELD:
                self._made[key] = found
        label = int(pictures.labels[number % len(pictures)])
        return CanvasExample(np.asarray(found / 255, np.float32), label)

    def _composed(self, number: int, split: str, pictures: PictureSet) -> Grey:
        draws = Draws("glimpse", self.seed, split, number)
        size = self.smallest + draws.below(self.largest - self.smallest + 1)
        own = number % len(pictures)
        others = [_grey(pictures, draws.below(len(pictures)), size) for _ in range(self.clutter)]
        picture = np.zeros((1, self.canvas, self.canvas), np.float32)
        strew(picture, others, self.clutter, draws, side=size // 3)
        scene = compose([_grey(pictures, own, size)], [0], self.canvas, self.canvas, draws)
        found: Grey = np.where(scene.masks[0], scene.picture[0], picture[0])
        return found

    def length(self, example: CanvasExample) -> int:
        """Patches: the same for all."""
        return self.spec.rows * self.spec.columns

    def collate(self, examples: Sequence[CanvasExample], generator: torch.Generator) -> Batch:
        """Canvases and their classes; nothing to pad."""
        pictures = np.stack([example.picture for example in examples]) if examples else self._nothing()
        known = [example.label for example in examples if example.label is not None]
        targets = torch.tensor(known, dtype=torch.long) if len(known) == len(examples) else None
        return Batch.of(cut(torch.from_numpy(pictures)[:, None], self.spec), targets=targets)

    def _nothing(self) -> Grey:
        return np.zeros((0, self.canvas, self.canvas), np.float32)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The accuracy after each glimpse."""
        if not isinstance(self.problem.answer, OneOfAfterEach):
            return []
        state = self.measured(AFTER_EACH, model, split, batch_size=batch_size, device=device)
        count = state.pop("examples")
        return [(Mean(f"accuracy_{glimpses}", unit="share"), [right, count]) for glimpses, right in state.items()]

    def parse(self, given: Mapping[str, str]) -> CanvasExample:
        """A picture at the size of the canvas: light writing on a dark ground."""
        if set(given) != {"image"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        grey = np.asarray(read_image(given["image"]).convert("L").resize((self.canvas, self.canvas)), np.float32)
        light = np.asarray(grey / 255, np.float32)
        return CanvasExample(light_on_dark(light), None)

    def show(self, example: CanvasExample, batch: Batch) -> Shown:
        """The canvas, and its patches by row and column."""
        rows, columns = self.spec.rows, self.spec.columns
        words = "a picture" if example.label is None else f"a canvas with {self.decode([example.label])}"
        return Shown(words, names(self.spec), "patches", picture=example.picture, grid=(rows, columns))

    def answer_text(self, predicted: Any, example: CanvasExample) -> str:
        """The class, and what was said before."""
        if not isinstance(predicted, dict):
            return super().answer_text(predicted, example)
        before = ", ".join(self._said(predicted))
        return f"{self.decode([predicted['class']])} (after each glimpse: {before})"

    def _said(self, predicted: Mapping[str, Any]) -> list[str]:
        return [self.decode([one]) for one in predicted["after_each"]]

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

    def draw(self, predicted: Any, example: CanvasExample, looked: Looked | None) -> Figure | None:
        """The canvas with the path of the glimpses."""
        if not isinstance(predicted, dict) or "places" not in predicted:
            return None
        return path_figure(example.picture, predicted["places"], self._said(predicted), self.spec.side)


@functools.cache
def _digits(split: str) -> PictureSet:
    """The digits of a split as pictures of bytes."""
    grey, shown = figures(split)
    return PictureSet(torch.from_numpy(grey[:, None]), torch.tensor(shown))


def _grey(pictures: PictureSet, number: int, height: int) -> Grey:
    """A picture at another size, in grey from 0 to 1."""
    return resized(np.asarray(brightness(pictures.pixels[number].numpy()) / 255, np.float32), height)
