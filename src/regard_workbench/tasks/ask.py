"""Questions about pictures: generated scenes of coloured shapes or digits, or any images with questions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue, unknown_name
from regard.support.arguments import whole_number
from regard.support.declared import at_least, one_of, option
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.figures.overlay import overlays
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.picture_files import PictureFiles
from regard_workbench.tasks.formats.question_files import ImageQuestion, question_files, read_questions
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of
from regard_workbench.tasks.formats.splits import of_split
from regard_workbench.tasks.generated import figure_questions
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.figure_questions import COLOURS, Drawn, Scenery, question, scenery, shape
from regard_workbench.tasks.generated.figure_sentences import NUMBERS
from regard_workbench.tasks.generated.scenes import resized
from regard_workbench.tasks.measures.metrics import ACCURACY, SHARE, Answered, Mean
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.remembered import remembered
from regard_workbench.tasks.parts.shared_options import ENCODING, STOP_OR_SKIP
from regard_workbench.tasks.parts.shown import Looked, Understood
from regard_workbench.tasks.parts.streams import Patches, StreamSpec, Tokens
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.patch_task import PatchPresenter, PatchTask
from regard_workbench.tasks.pictures.patches import cut, names
from regard_workbench.tasks.pictures.pixels import COLOUR, Pixels, numbers, packed, shown, square
from regard_workbench.tasks.pictures.written_digits import SIDE, images, numbers_of
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE, QUESTION = "picture", "question"  # the names of the streams
RELATIONAL = "relational"
FIGURES = ("shapes", "digits")
RELATIONS = tuple(figure_questions.RELATIONAL)
KINDS = (*figure_questions.OTHER, *RELATIONS)
LINE = 20  # letters of a question above a picture, in a line
QUESTIONS = 10  # about each generated scene, half of them relational
SCENES = {"validation": 100, "test": 200}


class AskedPicture(NamedTuple):
    """A picture, the words of a question about it, and the number of the answer where it is known."""

    pixels: Pixels
    question: tuple[str, ...]
    answer: int | None = None
    kind: str = ""


def _accuracy(name: str, relational: bool) -> Mean:
    """The share of right answers to relational questions, or to others that have a kind."""

    def look(answered: Answered) -> tuple[float, float] | None:
        kinds = answered.batch.notes["kind"]
        chosen = [kind != "" and kind.startswith(RELATIONAL) == relational for kind in kinds]
        right = answered.right[torch.tensor(chosen, device=answered.right.device)]
        return (float(right.sum()), float(len(right))) if len(right) else None

    return Mean(f"accuracy_{name}", unit=SHARE, over="questions", look=look)


@dataclass(frozen=True)
class WordsAndLabels(Fitted):
    """The words and the answers of training questions, the length of the longest, and the form of pictures."""

    vocabulary: Vocabulary
    labels: list[str]
    width: int
    size: int
    patch: int

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each answer."""
        return {label: number for number, label in enumerate(self.labels)}


class QuestionPresenter(PatchPresenter["PictureQuestions"]):
    """Reads a picture together with a question."""

    takes = ("image", "text")
    together = True

    def parse(self, task: PictureQuestions, given: Mapping[str, Any]) -> AskedPicture:
        """An image and a question about it."""
        if set(given) != {"image", "text"}:
            raise BadValue(
                f"--{'text' if 'image' in given else 'image'}: the task {task.name} answers a question about an image. "
                "Give both: --image FILE --text QUESTION."
            )
        several = next((name for name in given if not isinstance(given[name], str)), None)
        if several is not None:
            raise BadValue(f"--{several}: expected one image and one question, got {len(given[several])}.")
        words = words_of(given["text"])
        if not words:
            raise BadValue("--text: expected a question, got no word.")
        return AskedPicture(square(read_image(given["image"]), task.size), words)

    def understood(self, task: PictureQuestions, given: Mapping[str, str], example: AskedPicture) -> Understood:
        """Which words of the question are unknown."""
        fitted = task.fitted
        unknown = sorted({word for word in example.question if UNKNOWN in fitted.vocabulary.encode(word)})
        notes = []
        if unknown:
            notes.append(f"{len(unknown):,} words are unknown to this run: {', '.join(unknown[:8])}")
        if len(example.question) > fitted.width:
            notes.append(f"only the first {fitted.width} of {len(example.question)} words were read")
        pieces = names(task.spec)
        return Understood(pieces, [True] * len(pieces), notes)

    def words(self, task: PictureQuestions, example: AskedPicture) -> str:
        return f"“{' '.join(example.question)}?”"

    def picture(self, task: PictureQuestions, example: AskedPicture, batch: Batch) -> NDArray[np.float32]:
        return shown(example.pixels)

    def streams(self, task: PictureQuestions, example: AskedPicture) -> dict[str, list[str]]:
        return {QUESTION: list(example.question[: task.fitted.width])}

    def draw(
        self, task: PictureQuestions, predicted: Any, example: AskedPicture, looked: Looked | None
    ) -> Figure | None:
        """The picture below the question, and for each hop where it looked; the last one gives the answer."""
        spec = task.spec
        if looked is None or len(looked.columns) != spec.length:
            return None
        weights = np.asarray(looked.weights, np.float32).reshape(-1, spec.length).tolist()
        hops = [f"hop {number + 1}" for number in range(len(weights) - 1)]
        question = textwrap.fill(f"{' '.join(example.question)}?", LINE)
        return overlays(shown(example.pixels), [*hops, str(predicted)], weights, (spec.rows, spec.columns), question)

    def decode(self, task: PictureQuestions, tokens: Sequence[int]) -> str:
        """The answer."""
        return task.fitted.labels[tokens[0]]


@task("ask")
class PictureQuestions(PatchTask):
    """Answers questions about pictures; without files, generated scenes of figures, each of another colour.

    "what is the red one", "is it on the left", "at the top"; relational: "what is nearest to the red one", "what is
    furthest from it", "how many are like it". A question is asked only where its answer is clear by a pixel. Files:
    JSON lines {"image", "question", "answer"[, "kind"]} beside the images; kinds that begin with "relational" are
    measured apart from others.
    """

    judge = Judge.by(ACCURACY, _accuracy(RELATIONAL, True), _accuracy("other", False))
    presenter = QuestionPresenter()
    fitted = Kept(WordsAndLabels)
    tried = ("--example", "10")
    recipe = Recipe(
        model="answerer",
        steps=1500,
        batch_size=64,
        lr=1e-3,
        warmup=100,
        models={"answerer": "answerer(dim=64, hops=1, width=8)"},
        reaches={"accuracy": 0.95, "accuracy_relational": 0.9, "accuracy_other": 0.98},
    )

    data: Data | None = option(
        "a folder with the lines and the images, or files, folders and zips one by one", default=None
    )
    figures: str = option(
        "what generated scenes show: shapes (circles and squares) or digits", one_of(FIGURES), default="shapes"
    )
    objects: int = option("figures in a generated scene, each of another colour", at_least(3), default=4)
    kinds: tuple[str, ...] = option(
        "what is asked about generated scenes, joined by commas: what, left, top; relational: nearest, furthest, "
        "count. Half of the questions are relational where there are both",
        lambda name, kinds: _kinds(kinds),
        default=KINDS,
    )
    scenes: int = option("how many are generated for training, with ten questions each", at_least(1), default=10_000)
    size: int = option("pixels of a picture's side; images are brought to it", at_least(24), default=32)
    patch: int = option("pixels of a patch's side; attention is over patches", at_least(1), default=8)
    bad_files: str = option(
        "at an image that cannot be read: stop, or skip the questions about it and say so", STOP_OR_SKIP, default="stop"
    )
    encoding: str = ENCODING
    seed: int = option(
        "which images are kept for validation and test where no file says; which scenes are generated",
        whole_number,
        default=0,
        last=True,
    )
    whole: bool = option(
        "measure on all questions, keep none for training; for a model trained on other data", default=False, last=True
    )

    def check_options(self) -> None:
        if self.objects > len(COLOURS):
            raise BadValue(f"objects: expected 3 to {len(COLOURS)}, as many as there are colours, got {self.objects}.")
        Patches.of(COLOUR, self.size, self.size, self.patch)  # refuses a side that does not divide

    @cached_property
    def _files(self) -> tuple[list[Any], list[Any]]:
        assert self.data is not None
        return question_files(paths_of(self.data))

    @cached_property
    def questions(self) -> dict[str, Sequence[ImageQuestion]]:
        """The questions of each split."""
        if self.data is None:
            sizes = {"train": self.scenes, **SCENES}
            return {
                split: Generated(QUESTIONS * count, partial(self._generated, split)) for split, count in sizes.items()
            }
        typed_encoding = self.typed(encoding="latin-1")
        return {**read_questions(self._files[0], self.encoding, typed_encoding, self.seed, self.whole)}

    @remembered
    def scene(self, split: str, number: int) -> tuple[Pixels, Scenery]:
        """A generated scene; each is asked about again in every epoch."""
        figures = scenery(self.size, self.objects, self._drawn(split), Draws("ask", self.seed, split, number))
        return packed(figures.picture), figures

    def _drawn(self, split: str) -> Drawn:
        side = self.size // self.objects
        return shape(side) if self.figures == "shapes" else partial(_digit, split, side * 3 // 2)

    def _generated(self, split: str, index: int) -> ImageQuestion:
        number, which = divmod(index, QUESTIONS)
        draws = Draws("ask", self.seed, split, number, which)
        halves = [kind for kind in self.kinds if (kind in RELATIONS) == (which % 2 == 0)]
        text, answer, kind = question(self.scene(split, number)[1], halves or self.kinds, draws)
        return ImageQuestion(str(number), text, answer, f"{RELATIONAL} {kind}" if kind in RELATIONS else kind)

    def fit(self) -> WordsAndLabels:
        """Words from the training questions, labels from all: a number may be counted in the test alone.

        Generated questions have few words and answers, which the test holds.
        """
        rows = self._split("test" if self.data is None or "train" not in self.questions else "train")
        splits = [rows] if self.data is None else list(self.questions.values())
        counts = self.data is None and "count" in self.kinds
        counted = [str(number) for number in range(1, self.objects + 1)] if counts else []
        labels = sorted({*counted, *(row.answer for questions in splits for row in questions)})
        if len(labels) < 2:
            raise BadValue(f"data: expected at least two different answers, got only {excerpt(labels[0])}.")
        texts = [words_of(row.question) for row in rows]
        words = vocabulary.build("word", [" ".join(words) for words in texts])
        return WordsAndLabels(words, labels, max(len(words) for words in texts), self.size, self.patch)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; scenes are then generated in the size that the model reads."""
        super().restore(state)
        self.size, self.patch = self.fitted.size, self.fitted.patch

    @property
    def spec(self) -> Patches:
        """The patches of the picture."""
        return Patches.of(COLOUR, self.size, self.size, self.patch)

    def streams(self) -> dict[str, StreamSpec]:
        """The patches of the picture, and the words of the question."""
        return {PICTURE: self.spec, QUESTION: Tokens(len(self.fitted.vocabulary), PADDING, self.fitted.width)}

    def answers(self) -> list[OneOf]:
        """One of the answers that occur in training."""
        return [OneOf(len(self.fitted.labels))]

    def _split(self, split: str) -> Sequence[ImageQuestion]:
        return of_split(self.questions, split, self.data)

    @remembered
    def _pictures(self, split: str) -> dict[str, Pixels]:
        """The pictures of files that a split asks about."""
        names = (row.image for row in self._split(split))
        return PictureFiles(self._files[1]).read(names, self.size, BadFiles(self.bad_files))

    def examples(self, split: str) -> Sequence[AskedPicture]:
        """The questions of a split, in the order of the files."""
        rows = self._split(split)
        if self.data is not None:
            rows = [row for row in rows if row.image in self._pictures(split)]
        return Generated(len(rows), partial(self._example, split, rows), even=True)

    def _example(self, split: str, rows: Sequence[ImageQuestion], index: int) -> AskedPicture:
        row, numbers = rows[index], self.fitted.numbers
        pixels = self.scene(split, int(row.image))[0] if self.data is None else self._pictures(split)[row.image]
        if row.answer not in numbers:
            raise BadValue(f"data: the answer {excerpt(row.answer)} is unknown to this run.")
        return AskedPicture(pixels, words_of(row.question), numbers[row.answer], row.kind)

    def collate(self, examples: Sequence[AskedPicture], generator: torch.Generator) -> Batch:
        """Patches and padded questions; without targets when an example has none."""
        ids, keep = padded([self._ids(example.question) for example in examples], PADDING)
        none = torch.zeros(0, self.spec.length or 0, self.spec.width)
        rows = cut(numbers([example.pixels for example in examples]), self.spec) if examples else none
        streams = {PICTURE: Stream(rows), QUESTION: Stream(ids, keep)}
        kinds = {"kind": tuple(example.kind for example in examples)}
        answers = [example.answer for example in examples if example.answer is not None]
        if len(answers) < len(examples) or not answers:
            return Batch(streams, notes=kinds)
        return Batch(streams, {TARGETS: Stream(torch.tensor(answers))}, notes=kinds)

    def _ids(self, words: Sequence[str]) -> list[int]:
        return self.fitted.vocabulary.encode(" ".join(words))[: self.fitted.width] or [UNKNOWN]


def _kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    """Kinds of questions, each once."""
    for kind in kinds:
        if kind not in KINDS:
            raise unknown_name("kinds", kind, KINDS)
    if not kinds:
        raise BadValue(f"kinds: expected at least one of {', '.join(KINDS)}.")
    return tuple(dict.fromkeys(kinds))


def words_of(text: str) -> tuple[str, ...]:
    """The words of a question in lower case, without punctuation."""
    return tuple(re.findall(r"\w+(?:['’-]\w+)*", text.lower()))


def _digit(split: str, height: int, draws: Draws) -> tuple[Any, str]:
    """A digit of a split, and its name."""
    pixels, digits = images()
    number = draws.among(numbers_of(split))
    return resized(pixels[number].reshape(SIDE, SIDE), height), NUMBERS[digits[number]]
