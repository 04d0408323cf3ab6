"""Look step by step: one digit somewhere on a cluttered canvas."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.arguments import whole_number
from regard.errors import BadValue
from regard.tasks.answers import Answer, OneOf, OneOfAfterEach
from regard.tasks.batch import Batch
from regard.tasks.digits import CLASSES, SIDE, images, split_of
from regard.tasks.formats.image_files import read_image
from regard.tasks.formats.splits import checked_split
from regard.tasks.generated.draws import Draws, Generated
from regard.tasks.generated.scenes import compose, resized, strew
from regard.tasks.measures.metrics import LOSS, Answered, Answering, Counts, Mean, Metric, State
from regard.tasks.pictures.patches import cut
from regard.tasks.shown import Shown
from regard.tasks.streams import Patches
from regard.tasks.task import Recipe, Task, task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grey = NDArray[np.float32]
ROUNDS = {"train": 16, "validation": 2, "test": 4}  # scenes that each image is placed in


class Canvas(NamedTuple):
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

    `regard evaluate` also measures the accuracy after each glimpse, for models that look step by step.

    Args:
        canvas: pixels of the picture's side
        smallest: pixels of the smallest digit's side
        largest: pixels of the largest digit's side
        clutter: pieces of other digits on the canvas
        patch: pixels of a patch's side; the places to look at are the patches
        seed: of the scenes
    """

    metric = ACCURACY
    takes = ("image",)
    recipe = Recipe(
        model="glimpse", steps=2000, batch_size=64, lr=3e-3, warmup=50,
        compared=("glimpse", "glimpse(policy=random)", "glimpse(policy=centre)"),
    )  # fmt: skip

    def __init__(
        self,
        canvas: int = 32,
        smallest: int = 14,
        largest: int = 16,
        clutter: int = 4,
        patch: int = 4,
        seed: int = 0,
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
        self.spec = Patches.of(channels=1, height=canvas, width=canvas, side=whole_number("patch", patch, 1))

    def streams(self) -> dict[str, Patches]:
        """The canvas as patches."""
        return {"inputs": self.spec}

    def answers(self) -> list[Answer]:
        """The class after each glimpse, or once."""
        return [OneOfAfterEach(CLASSES), OneOf(CLASSES)]

    def metrics(self) -> tuple[Metric, ...]:
        return (LOSS, ACCURACY)

    def examples(self, split: str) -> Sequence[Canvas]:
        """Each image of a split in several scenes, always the same ones."""
        chosen = [number for number, theirs in enumerate(split_of()) if theirs == checked_split(split)]
        return Generated(
            ROUNDS[split] * len(chosen), functools.partial(self._scene, split=split, chosen=tuple(chosen))
        )

    def _scene(self, number: int, split: str, chosen: tuple[int, ...]) -> Canvas:
        draws = Draws("glimpse", self.seed, split, number)
        size = self.smallest + draws.below(self.largest - self.smallest + 1)
        own = chosen[number % len(chosen)]
        others = [_enlarged(draws.among(chosen), size) for _ in range(self.clutter)]
        picture = np.zeros((1, self.canvas, self.canvas), np.float32)
        strew(picture, others, self.clutter, draws, side=size // 3)
        digit = images()[1][own]
        scene = compose([_enlarged(own, size)], [digit], self.canvas, self.canvas, draws)
        return Canvas(np.where(scene.masks[0], scene.picture[0], picture[0]), digit)

    def length(self, example: Canvas) -> int:
        """Patches: the same for all."""
        return self.spec.rows * self.spec.columns

    def collate(self, examples: Sequence[Canvas], generator: torch.Generator) -> Batch:
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
        return [
            (Mean(f"accuracy_{glimpses}", unit="share"), [right, count]) for glimpses, right in state.items()
        ]

    def parse(self, given: Mapping[str, str]) -> Canvas:
        """A picture at the size of the canvas: light writing on a dark ground."""
        if set(given) != {"image"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        grey = np.asarray(
            read_image(given["image"]).convert("L").resize((self.canvas, self.canvas)), np.float32
        )
        grey = grey / 255
        return Canvas(1 - grey if grey.mean() > 0.5 else grey, None)

    def show(self, example: Canvas, batch: Batch) -> Shown:
        """The canvas, and its patches by row and column."""
        rows, columns = self.spec.rows, self.spec.columns
        pieces = [f"{number // columns},{number % columns}" for number in range(rows * columns)]
        words = "a picture" if example.label is None else f"a canvas with a {example.label}"
        return Shown(words, pieces, "patches", picture=example.picture, grid=(rows, columns))

    def answer_text(self, predicted: Any, example: Canvas) -> str:
        """The class, and what was said before."""
        if not isinstance(predicted, dict):
            return super().answer_text(predicted, example)
        before = ", ".join(str(said) for said in predicted["after_each"])
        return f"{predicted['class']} (after each glimpse: {before})"

    def draw(self, predicted: Any, example: Canvas, weights: Sequence[float]) -> Figure:
        """The canvas with the path of the glimpses."""
        if not isinstance(predicted, dict) or "places" not in predicted:
            return super().draw(predicted, example, weights)
        from regard.tasks.pictures.path import path_figure

        return path_figure(example.picture, predicted["places"], predicted["after_each"], self.spec.side)


@functools.lru_cache(maxsize=1 << 15)
def _enlarged(number: int, height: int) -> Grey:
    """An image of scikit-learn's digits at another size."""
    pixels, _ = images()
    return resized(pixels[number].reshape(SIDE, SIDE), height)
