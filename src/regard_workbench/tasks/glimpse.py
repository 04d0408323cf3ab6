"""Look step by step: one digit somewhere on a cluttered canvas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import Answer, OneOf, OneOfAfterEach
from regard_workbench.tasks.figures.path import path_figure
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.scenes import compose, resized, strew
from regard_workbench.tasks.images import ClassPictures
from regard_workbench.tasks.measures.metrics import Answered, Answering, Counts, Mean, Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.digit_pictures import light_on_dark
from regard_workbench.tasks.pictures.examples import PictureSet, brightness
from regard_workbench.tasks.pictures.patch_task import PatchPresenter, PatchTask
from regard_workbench.tasks.pictures.patches import cut
from regard_workbench.tasks.pictures.written_digits import SIDE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grey = NDArray[np.float32]
ROUNDS = {"train": 16, "validation": 2, "test": 4}  # scenes that each image is placed in


HELD = 2**26  # bytes of scenes that are kept, since each is read again in every epoch


class CanvasExample(NamedTuple):
    """A picture (height,width) from 0 to 1, and the class of what lies on it."""

    picture: Grey
    label: int | None  # None where a user gave the picture


def _right(answered: Answered) -> tuple[float, float]:
    assert answered.batch.targets is not None
    classes = [answer["class"] if isinstance(answer, dict) else answer for answer in answered.predicted]
    right = sum(label == target for label, target in zip(classes, answered.batch.targets.tolist(), strict=True))
    return float(right), float(len(classes))


ACCURACY = Mean("accuracy", unit="share", look=_right)


def _right_after_each(answered: Answered) -> dict[str, float]:
    """How many answers were right after each glimpse, by its number from 1 on."""
    assert answered.batch.targets is not None
    answers = [answer["after_each"] for answer in answered.predicted]
    targets = answered.batch.targets.tolist()
    return {
        str(number + 1): float(sum(labels[number] == target for labels, target in zip(answers, targets, strict=True)))
        for number in range(len(answers[0]))
    } | {"examples": float(len(answers))}


AFTER_EACH = Counts("accuracy after each glimpse", look=_right_after_each, total="examples")


class GlimpsePresenter(PatchPresenter["GlimpseTask"]):
    """Shows the canvas, and the path of the glimpses over it."""

    def opened(self, task: GlimpseTask, path: str) -> CanvasExample:
        """A picture at the size of the canvas: light writing on a dark ground."""
        grey = np.asarray(read_image(path).convert("L").resize((task.canvas, task.canvas)), np.float32)
        return CanvasExample(light_on_dark(np.asarray(grey / 255, np.float32)), None)

    def words(self, task: GlimpseTask, example: CanvasExample) -> str:
        return "a picture" if example.label is None else f"a canvas with {task.decode([example.label])}"

    def picture(self, task: GlimpseTask, example: CanvasExample, batch: Batch) -> Grey:
        return example.picture

    def answer_text(self, task: GlimpseTask, predicted: Any, example: CanvasExample) -> str:
        """The class, and what was said before."""
        if not isinstance(predicted, dict):
            return super().answer_text(task, predicted, example)
        names = ", ".join(_after_each(task, predicted))
        return f"{task.decode([predicted['class']])} (after each glimpse: {names})"

    def draw(self, task: GlimpseTask, predicted: Any, example: CanvasExample, looked: Looked | None) -> Figure | None:
        """The canvas with the path of the glimpses."""
        if not isinstance(predicted, dict) or "places" not in predicted:
            return None
        return path_figure(example.picture, predicted["places"], _after_each(task, predicted), task.spec.side)


def _after_each(task: GlimpseTask, predicted: Mapping[str, Any]) -> list[str]:
    """The name of the class that was predicted after each glimpse."""
    return [task.decode([label]) for label in predicted["after_each"]]


@task("glimpse")
class GlimpseTask(ClassPictures, PatchTask):
    """Says which digit lies on a canvas between pieces of others: scikit-learn's digits, enlarged, at random places.

    With files, their pictures (as the task `images` reads them, in grey) lie on the canvas instead. `regard evaluate`
    also measures the accuracy after each glimpse, for models that look step by step.
    """

    judge = Judge.by(ACCURACY)
    presenter = GlimpsePresenter()
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

    canvas: int = option("pixels of the picture's side", at_least(SIDE), default=32)
    smallest: int = option("pixels of the smallest digit's or picture's side", at_least(SIDE), default=14)
    largest: int = option("pixels of the largest one's side", at_least(SIDE), default=16)
    clutter: int = option("pieces of others on the canvas", at_least(0), default=4)
    patch: int = option("pixels of a patch's side; the places to look at are the patches", at_least(1), default=4)
    seed: int = option("of the scenes", default=0)
    whole: bool = option(
        "measure on all pictures, keep none for training; for a model trained on other data", default=False, last=True
    )

    def check_options(self) -> None:
        if not self.smallest <= self.largest <= self.canvas:
            raise BadValue(
                f"smallest, largest: expected {SIDE} ≤ smallest ≤ largest ≤ canvas, got {self.smallest}, "
                f"{self.largest} and {self.canvas}."
            )
        self.read_with(size=self.largest, whole=self.whole)
        _ = self.spec

    @cached_property
    def spec(self) -> Patches:
        """The canvas as patches."""
        return Patches.of(channels=1, height=self.canvas, width=self.canvas, side=self.patch)

    def answers(self) -> list[Answer]:
        """The class after each glimpse, or once."""
        return [OneOfAfterEach(len(self.classes)), OneOf(len(self.classes))]

    def examples(self, split: str) -> Sequence[CanvasExample]:
        """Each picture of a split in several scenes, always the same ones."""
        pictures = self.pictures(split)
        make = partial(self._scene, split=split, pictures=pictures)
        return Generated(ROUNDS[split] * len(pictures), make, even=True)

    @cached_property
    def _scenes(self) -> dict[tuple[str, int], NDArray[np.uint8]]:
        return {}

    def _scene(self, number: int, split: str, pictures: PictureSet) -> CanvasExample:
        key = split, number
        scene = self._scenes.get(key)
        if scene is None:
            scene = (255 * self._composed(number, split, pictures)).round().astype(np.uint8)
            if len(self._scenes) * scene.nbytes < HELD:
                self._scenes[key] = scene
        label = int(pictures.labels[number % len(pictures)])
        return CanvasExample(np.asarray(scene / 255, np.float32), label)

    def _composed(self, number: int, split: str, pictures: PictureSet) -> Grey:
        draws = Draws("glimpse", self.seed, split, number)
        size = self.smallest + draws.below(self.largest - self.smallest + 1)
        distractors = [_grey(pictures, draws.below(len(pictures)), size) for _ in range(self.clutter)]
        picture = np.zeros((1, self.canvas, self.canvas), np.float32)
        strew(picture, distractors, self.clutter, draws, side=size // 3)
        scene = compose([_grey(pictures, number % len(pictures), size)], [0], self.canvas, self.canvas, draws)
        return np.asarray(np.where(scene.masks[0], scene.picture[0], picture[0]), np.float32)

    def collate(self, examples: Sequence[CanvasExample], generator: torch.Generator) -> Batch:
        """Canvases and their classes; nothing to pad."""
        none = np.zeros((0, self.canvas, self.canvas), np.float32)
        pictures = np.stack([example.picture for example in examples]) if examples else none
        labels = [example.label for example in examples if example.label is not None]
        targets = torch.tensor(labels, dtype=torch.long) if len(labels) == len(examples) else None
        return Batch.of(cut(torch.from_numpy(pictures)[:, None], self.spec), targets=targets)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The accuracy after each glimpse."""
        if not isinstance(self.problem.answer, OneOfAfterEach):
            return []
        state = self.measured(AFTER_EACH, model, split, batch_size=batch_size, device=device)
        count = state.pop("examples")
        return [(Mean(f"accuracy_{glimpses}", unit="share"), [right, count]) for glimpses, right in state.items()]


def _grey(pictures: PictureSet, number: int, height: int) -> Grey:
    """A picture at another size, in grey from 0 to 1."""
    return resized(np.asarray(brightness(pictures.pixels[number].numpy()) / 255, np.float32), height)
