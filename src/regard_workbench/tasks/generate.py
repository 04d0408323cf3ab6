"""Make pictures of a class that is asked for."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BadValue
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import MadePicture
from regard_workbench.tasks.figures.looks import looks_figure
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.images import ClassPictures
from regard_workbench.tasks.measures.frechet import Frechet, moments
from regard_workbench.tasks.measures.metrics import LOSS, Answered, Answering, Mean, Metric, State
from regard_workbench.tasks.parts.batch import Batch, Stream
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shown import Looked, Shown
from regard_workbench.tasks.parts.streams import Tokens, Vectors
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.examples import PictureSet
from regard_workbench.tasks.pictures.judge import Judgement, PictureJudge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASS, NOISE, PICTURE = "class", "noise", "picture"  # the streams and the target


class PictureRequest(NamedTuple):
    """The class that is asked for, the noise to start from, and a real picture of that class."""

    label: int
    noise: Tensor | None = None  # (width,); None: drawn for each batch
    real: Tensor | None = None  # (channels,height,width), bytes; None where a user asks
    made: NDArray[np.float32] | None = None  # (channels,height,width) from 0 to 1: what a model made of it


class MadePresenter(Presenter["GenerateTask"]):
    """Reads the name of a class, and shows the picture that was made."""

    takes = ("text",)

    def parse(self, task: GenerateTask, given: Mapping[str, str]) -> Any:
        """The name of a class; `7 #2` asks for another picture of it, made from other noise."""
        if set(given) != {"text"}:
            return super().parse(task, given)
        classes = task.classes
        name, number = given["text"].strip(), "1"
        if name not in classes and (match := re.fullmatch(r"(.*\S)\s*#\s*(\d+)", name)):
            name, number = match.groups()
        if name not in classes:
            raise BadValue(
                f"--text: expected the name of a class, possibly with the number of a draw, as in {classes[-1]!r} or "
                f"'{classes[-1]} #2', got {given['text'].strip()!r}. There are: "
                f"{', '.join(classes[:20])}{', …' if len(classes) > 20 else ''}."
            )
        return PictureRequest(classes.index(name), task.noise_of("asked", int(number)))

    def show(self, task: GenerateTask, example: PictureRequest, batch: Batch) -> Shown:
        """The class that is asked for, and what a model made of it."""
        name = task.decode([example.label])
        if example.made is None:
            return Shown(f"a picture of {name}", [name])
        return Shown(f"a picture of {name}", [name], picture=_visible(example.made), grid=(1, 1))

    def marked(self, task: GenerateTask, example: PictureRequest, predicted: Any) -> PictureRequest:
        """The request with what a model made of it."""
        return example._replace(made=np.array(predicted, np.float32))

    def answer_text(self, task: GenerateTask, predicted: Any, example: PictureRequest) -> str:
        """How large the picture is: `draw` and `marked` show it."""
        height, width = np.array(predicted).shape[1:]
        return f"a picture of {height} × {width} pixels"

    def draw(self, task: GenerateTask, predicted: Any, example: PictureRequest, looked: Looked | None) -> Figure:
        """The picture, and where some of its places looked."""
        picture, title = _visible(np.array(predicted, np.float32)), task.decode([example.label])
        between = looked is not None and len(looked.rows) == len(looked.columns)
        weights, places = (looked.weights, looked.columns) if looked is not None and between else ([], [])
        return looks_figure(picture, title, weights, places)


@task("generate")
class GenerateTask(ClassPictures):
    """Makes a picture of the class that is asked for from random numbers; without files, digits of 8 × 8 pixels.

    With files, pictures as the task `images` reads them. Made pictures are judged by a classifier that is trained on
    the real training pictures, always in the same way: `conditional_accuracy` is how often it sees the class that was
    asked for, `frechet` the Fréchet distance in its features (32 numbers of a hidden layer) between made pictures and
    the real ones of the split, as many of each class. `regard evaluate` measures real pictures by the same judge, too:
    `conditional_accuracy_real` those of the split, `frechet_real` as many of the training split beside them. In
    validation and testing the noise belongs to the example, so every model starts from the same.
    """

    presenter = MadePresenter()
    tried = ("--text", "7")
    metric = Frechet("frechet", over="pictures")  # it sees, too, if all pictures of a class are alike
    recipe = Recipe(
        model="gan",
        steps=1200,
        batch_size=64,
        lr=1e-3,
        weight_decay=0.0,
        betas=(0.0, 0.9),
        warmup=50,
        clip=0.0,
        compared=("gan", "gan(self_attention=false)"),
        reaches={"conditional_accuracy": 0.93, "frechet": 1.2},
    )

    size: int | None = option(
        "pixels of a side; None: IDX files as they are, others as the first picture, at most 64", default=None
    )
    noise: int = option("how many random numbers a picture is made from", at_least(1), default=32)
    seed: int = option("of the noise in validation and testing; which pictures are for validation and test", default=0)

    def check_options(self) -> None:
        if self.data is None and self.size is not None:
            raise BadValue("size: only pictures of files are brought to a size. Give --data, or leave it out.")
        self.read_with(size=self.size)

    def streams(self) -> dict[str, Tokens | Vectors]:
        """The class, and the noise."""
        return {CLASS: Tokens(len(self.classes), length=1), NOISE: Vectors(self.noise, 1)}

    def answers(self) -> list[MadePicture]:
        """A picture."""
        if self.source is None:
            return [MadePicture(*self.pictures("train").pixels.shape[1:])]
        facts = self.source.fitted
        return [MadePicture(facts.channels, facts.height, facts.width)]

    def metrics(self) -> tuple[Metric, ...]:
        """The accuracy of what was asked for and the Fréchet distance, by one judge."""
        accuracy = Mean("conditional_accuracy", unit="share", over="pictures", look=self._right)
        return (LOSS, Frechet(self.metric.name, over=self.metric.over, look=self._features), accuracy)

    def examples(self, split: str) -> Sequence[PictureRequest]:
        """A request for each real picture of a split."""
        pictures = self.pictures(split)
        return Generated(len(pictures), functools.partial(self._request, pictures, split), even=True)

    def _request(self, pictures: PictureSet, split: str, number: int) -> PictureRequest:
        noise = None if split == "train" else self.noise_of(split, number)
        return PictureRequest(int(pictures.labels[number]), noise, pictures.pixels[number])

    def noise_of(self, *key: object) -> Tensor:
        """Normal noise that belongs to a key (Box & Muller 1958)."""
        draws = Draws("generate", self.seed, *key)
        radius, angle = (np.array(draws.several(2**32, self.noise)) + 0.5 for _ in range(2))
        normal = np.sqrt(-2 * np.log(radius / 2**32)) * np.cos(2 * np.pi * angle / 2**32)
        return torch.from_numpy(normal.astype(np.float32))

    def length(self, example: PictureRequest) -> int:
        """One position: the class."""
        return 1

    def collate(self, examples: Sequence[PictureRequest], generator: torch.Generator) -> Batch:
        """Classes, noise and real pictures; nothing to pad."""
        labels = torch.tensor([[example.label] for example in examples], dtype=torch.long).reshape(-1, 1)
        drawn = torch.randn(len(examples), self.noise, generator=generator)
        for row, example in enumerate(examples):
            if example.noise is not None:
                drawn[row] = example.noise
        real = [example.real for example in examples if example.real is not None]
        answers = {}
        if len(real) == len(examples):
            (answer,) = self.answers()
            none = torch.zeros(0, answer.channels, answer.height, answer.width)
            answers[PICTURE] = Stream(torch.stack(real).float() / 255 if real else none)
        return Batch({CLASS: Stream(labels), NOISE: Stream(drawn[:, None])}, answers)

    @functools.cached_property
    def picture_judge(self) -> PictureJudge:
        """The classifier that judges, trained when it is first asked."""
        pictures = self.pictures("train")
        return PictureJudge(pictures.pixels, pictures.labels, len(self.classes))

    def _judgement(self, answered: Answered) -> Judgement:
        return self.picture_judge(torch.tensor(answered.predicted))

    def _right(self, answered: Answered) -> tuple[float, float]:
        judged = answered.once(self._judgement).classes
        wanted = answered.batch.streams[CLASS].data[:, 0].cpu().numpy()
        return float((judged == wanted).sum()), float(len(judged))

    def _features(self, answered: Answered) -> tuple[Any, Any] | None:
        real = answered.batch.targets
        return None if real is None else (answered.once(self._judgement).features, self.picture_judge(real).features)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The same of real pictures: how far a perfect model could come."""
        count, pictures, train = len(self.examined_examples(split)), self.pictures(split), self.pictures("train")
        labels = pictures.labels[:count]
        real = self.picture_judge(pictures.pixels[:count])
        training_judgement = self.picture_judge(train.pixels[_of_same_classes(labels, train)])
        right = [float((real.classes == labels.numpy()).sum()), float(count)]
        distance = Frechet("frechet_real", over="pictures")
        return [
            (Mean("conditional_accuracy_real", unit="share", over="pictures"), right),
            (distance, [moments(training_judgement.features), moments(real.features)]),
        ]

    def protocol(self) -> dict[str, Any]:
        """Who judges."""
        return {"judge": "two hidden layers, trained on the real training pictures with noise, float64, seed 0"}


def _of_same_classes(labels: Tensor, pictures: PictureSet) -> Tensor:
    """For each label the number of a picture of that class, spread over all of them: neighbours are of one writer."""
    numbers = torch.zeros(len(labels), dtype=torch.long)
    for label in labels.unique().tolist():
        places, theirs = (labels == label).nonzero()[:, 0], (pictures.labels == label).nonzero()[:, 0]
        numbers[places] = theirs[torch.arange(len(places)) * len(theirs) // len(places)]
    return numbers


def _visible(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """A picture (channels,height,width) for people: (height,width) in grey, (height,width,3) in colours."""
    return picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0))
