"""Questions about pictures: generated scenes of coloured shapes or digits, or any images with questions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

from regard.errors import BadValue, unknown_name
from regard.support.arguments import names_list, whole_number
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.figures.overlay import overlays
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.picture_files import PictureFiles
from regard_workbench.tasks.formats.question_files import ImageQuestion, question_files, read_questions
from regard_workbench.tasks.formats.reading import Data, checked_encoding, excerpt, paths_of
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated import figure_questions
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.figure_questions import COLOURS, Drawn, Scenery, question, scenery, shape
from regard_workbench.tasks.generated.figure_sentences import NUMBERS
from regard_workbench.tasks.generated.scenes import resized
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, SHARE, Answered, Mean, Metric
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shown import Looked, Shown, Understood
from regard_workbench.tasks.parts.streams import Patches, StreamSpec, Tokens
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures.patches import cut, names
from regard_workbench.tasks.pictures.pixels import COLOUR, Pixels, numbers, packed, shown, square
from regard_workbench.tasks.pictures.written_digits import SIDE, images, numbers_of
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN, Vocabulary, Words

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


@task("ask")
class PictureQuestions(Task):
    """Answers questions about pictures; without files, generated scenes of figures, each of another colour.

    "what is the red one", "is it on the left", "at the top"; relational: "what is nearest to the red one", "what is
    furthest from it", "how many are like it". A question is asked only where its answer is clear by a pixel. Files:
    JSON lines {"image", "question", "answer"[, "kind"]} beside the images; kinds that begin with "relational" are
    measured apart from others.

    Args:
        data: a folder with the lines and the images, or files, folders and zips one by one
        figures: what generated scenes show: shapes (circles and squares) or digits
        objects: figures in a generated scene, each of another colour
        kinds: what is asked about generated scenes, joined by commas: what, left, top; relational: nearest, furthest,
            count. Half of the questions are relational where there are both
        scenes: how many are generated for training, with ten questions each
        size: pixels of a picture's side; images are brought to it
        patch: pixels of a patch's side; attention is over patches
        bad_files: at an image that cannot be read: stop, or skip the questions about it and say so
        encoding: how the files are encoded
        seed: which images are kept for validation and test where no file says; which scenes are generated
        whole: measure on all questions, keep none for training; for a model trained on other data
    """

    takes = ("image", "text")
    tried = ("--example", "10")
    together: ClassVar[bool] = True
    metric: ClassVar[Metric] = ACCURACY
    recipe = Recipe(
        model="answerer",
        steps=1500,
        batch_size=64,
        lr=1e-3,
        warmup=100,
        models={"answerer": "answerer(dim=64, hops=1, width=8)"},
        reaches={"accuracy": 0.95, "accuracy_relational": 0.9, "accuracy_other": 0.98},
    )

    def __init__(
        self,
        data: Data | None = None,
        figures: str = "shapes",
        objects: int = 4,
        kinds: tuple[str, ...] = KINDS,
        scenes: int = 10_000,
        size: int = 32,
        patch: int = 8,
        bad_files: str = "stop",
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data, self.whole, self.bad = data, whole, BadFiles(bad_files)
        if figures not in FIGURES:
            raise unknown_name("figures", figures, FIGURES)
        self.figures = figures
        self.objects = whole_number("objects", objects, 3)
        if self.objects > len(COLOURS):
            raise BadValue(f"objects: expected 3 to {len(COLOURS)}, as many as there are colours, got {objects}.")
        self.kinds = _kinds(kinds)
        self.scenes = whole_number("scenes", scenes, 1)
        self.size, self.patch = whole_number("size", size, 24), whole_number("patch", patch, 1)
        self.spec = Patches.of(COLOUR, self.size, self.size, self.patch)
        self.encoding, self.seed = checked_encoding(encoding), whole_number("seed", seed)
        self.labels: list[str] = []
        self.vocabulary: Vocabulary = Words([])
        self.width = 0  # words of the longest question
        self._made: dict[tuple[str, int], tuple[Pixels, Scenery]] = {}
        self._read_pictures: dict[str, dict[str, Pixels]] = {}

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
        other = self.typed(encoding="latin-1")
        return {**read_questions(self._files[0], self.encoding, other, self.seed, self.whole)}

    def scene(self, split: str, number: int) -> tuple[Pixels, Scenery]:
        """A generated scene; kept, since each is asked about again in every epoch."""
        key = split, number
        if key not in self._made:
            draws = Draws("ask", self.seed, split, number)
            made = scenery(self.size, self.objects, self._drawn(split), draws)
            self._made[key] = packed(made.picture), made
        return self._made[key]

    def _drawn(self, split: str) -> Drawn:
        side = self.size // self.objects
        return shape(side) if self.figures == "shapes" else partial(_digit, split, side * 3 // 2)

    def _generated(self, split: str, index: int) -> ImageQuestion:
        number, which = divmod(index, QUESTIONS)
        draws = Draws("ask", self.seed, split, number, which)
        halves = [kind for kind in self.kinds if (kind in RELATIONS) == (which % 2 == 0)]
        text, answer, kind = question(self.scene(split, number)[1], halves or self.kinds, draws)
        return ImageQuestion(str(number), text, answer, f"{RELATIONAL} {kind}" if kind in RELATIONS else kind)

    def _prepare(self) -> None:
        """Words from the training questions, labels from all: a number may be counted in the test alone.

        Generated questions have few words and answers, which the test holds.
        """
        rows = self._split("test" if self.data is None or "train" not in self.questions else "train")
        parts = [rows] if self.data is None else list(self.questions.values())
        counts = self.data is None and "count" in self.kinds
        counted = [str(number) for number in range(1, self.objects + 1)] if counts else []
        self.labels = sorted({*counted, *(row.answer for part in parts for row in part)})
        if len(self.labels) < 2:
            raise BadValue(f"data: expected at least two different answers, got only {excerpt(self.labels[0])}.")
        texts = [words_of(row.question) for row in rows]
        self.vocabulary = vocabulary.build("word", [" ".join(words) for words in texts])
        self.width = max(len(words) for words in texts)

    def _known(self) -> OneOf:
        if not self.labels:
            self._prepare()
        return OneOf(len(self.labels))

    def streams(self) -> dict[str, StreamSpec]:
        """The patches of the picture, and the words of the question."""
        self._known()
        return {PICTURE: self.spec, QUESTION: Tokens(len(self.vocabulary), PADDING, self.width)}

    def answers(self) -> list[OneOf]:
        """One of the answers that occur in training."""
        return [self._known()]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss and accuracy: of all questions, of relational ones, of the others."""
        return (LOSS, ACCURACY, _accuracy(RELATIONAL, True), _accuracy("other", False))

    def _split(self, split: str) -> Sequence[ImageQuestion]:
        if checked_split(split) not in self.questions:
            raise BadValue(f"data: {self.data} has nothing for {split}. It has: {', '.join(self.questions)}.")
        return self.questions[split]

    def examples(self, split: str) -> Sequence[AskedPicture]:
        """The questions of a split, in the order of the files."""
        self._known()
        rows = self._split(split)
        if self.data is not None:
            if split not in self._read_pictures:
                wanted = (row.image for row in rows)
                self._read_pictures[split] = PictureFiles(self._files[1]).read(wanted, self.size, self.bad)
            rows = [row for row in rows if row.image in self._read_pictures[split]]
        return Generated(len(rows), partial(self._example, split, rows), even=True)

    def _example(self, split: str, rows: Sequence[ImageQuestion], index: int) -> AskedPicture:
        row = rows[index]
        if self.data is None:
            pixels = self.scene(split, int(row.image))[0]
        else:
            pixels = self._read_pictures[split][row.image]
        if row.answer not in self._numbers:
            raise BadValue(f"data: the answer {excerpt(row.answer)} is unknown to this run.")
        return AskedPicture(pixels, words_of(row.question), self._numbers[row.answer], row.kind)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def length(self, example: AskedPicture) -> int:
        """Patches: the same for all."""
        return self.spec.rows * self.spec.columns

    def collate(self, examples: Sequence[AskedPicture], generator: torch.Generator) -> Batch:
        """Patches and padded questions; without targets when an example has none."""
        ids, keep = padded([self._ids(example.question) for example in examples], PADDING)
        if examples:
            rows = cut(numbers([example.pixels for example in examples]), self.spec)
        else:
            rows = torch.zeros(0, self.spec.rows * self.spec.columns, self.spec.width)
        streams = {PICTURE: Stream(rows), QUESTION: Stream(ids, keep)}
        kinds = {"kind": tuple(example.kind for example in examples)}
        known = [example.answer for example in examples if example.answer is not None]
        if len(known) < len(examples) or not known:
            return Batch(streams, notes=kinds)
        return Batch(streams, {TARGETS: Stream(torch.tensor(known))}, notes=kinds)

    def _ids(self, words: Sequence[str]) -> list[int]:
        return self.vocabulary.encode(" ".join(words))[: self.width] or [UNKNOWN]

    def parse(self, given: Mapping[str, Any]) -> AskedPicture:
        """An image and a question about it."""
        if set(given) != {"image", "text"}:
            raise BadValue(
                f"--{'text' if 'image' in given else 'image'}: the task {self.name} answers a question about an image. "
                "Give both: --image FILE --text QUESTION."
            )
        several = next((name for name in given if not isinstance(given[name], str)), None)
        if several is not None:
            raise BadValue(f"--{several}: expected one image and one question, got {len(given[several])}.")
        if not words_of(given["text"]):
            raise BadValue("--text: expected a question, got no word.")
        return AskedPicture(square(read_image(given["image"]), self.size), words_of(given["text"]))

    def understood(self, given: Mapping[str, str], example: AskedPicture) -> Understood:
        """Which words of the question are unknown."""
        unknown = sorted({word for word in example.question if UNKNOWN in self.vocabulary.encode(word)})
        notes = []
        if unknown:
            notes.append(f"{len(unknown):,} words are unknown to this run: {', '.join(unknown[:8])}")
        if len(example.question) > self.width:
            notes.append(f"only the first {self.width} of {len(example.question)} words were read")
        pieces = names(self.spec)
        return Understood(pieces, [True] * len(pieces), notes)

    def show(self, example: AskedPicture, batch: Batch) -> Shown:
        """The picture with the names of its patches, beside it the words of the question."""
        grid = (self.spec.rows, self.spec.columns)
        words = f"“{' '.join(example.question)}?”"
        streams = {QUESTION: list(example.question[: self.width])}
        return Shown(words, names(self.spec), "patches", picture=shown(example.pixels), grid=grid, streams=streams)

    def draw(self, predicted: Any, example: AskedPicture, looked: Looked | None) -> Figure | None:
        """The picture below the question, and for each hop where it looked; the last one gives the answer."""
        count = self.spec.rows * self.spec.columns
        if looked is None or len(looked.columns) != count:
            return None
        weights = np.asarray(looked.weights, np.float32).reshape(-1, count).tolist()
        hops = [f"hop {number + 1}" for number in range(len(weights) - 1)]
        asked = textwrap.fill(f"{' '.join(example.question)}?", LINE)
        grid = (self.spec.rows, self.spec.columns)
        return overlays(shown(example.pixels), [*hops, str(predicted)], weights, grid, asked)

    def decode(self, tokens: Sequence[int]) -> str:
        """The answer."""
        return self.labels[tokens[0]]

    def state(self) -> dict[str, Any]:
        """Vocabulary, labels and sizes."""
        self._known()
        return {
            "vocabulary": self.vocabulary.state(),
            "labels": list(self.labels),
            "width": self.width,
            "size": self.size,
            "patch": self.patch,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabulary, labels and sizes."""
        self.labels, self.vocabulary = (names_list("labels", state["labels"]), vocabulary.restored(state["vocabulary"]))
        self.width = whole_number("width", state["width"], 1)
        self.size, self.patch = (whole_number("size", state["size"], 1), whole_number("patch", state["patch"], 1))
        self.spec = Patches.of(COLOUR, self.size, self.size, self.patch)
        self.__dict__.pop("_numbers", None)  # of the former labels


def _kinds(given: Sequence[str]) -> tuple[str, ...]:
    """Kinds of questions, each once."""
    for kind in given:
        if kind not in KINDS:
            raise unknown_name("kinds", kind, KINDS)
    if not given:
        raise BadValue(f"kinds: expected at least one of {', '.join(KINDS)}.")
    return tuple(dict.fromkeys(given))


def words_of(text: str) -> tuple[str, ...]:
    """The words of a question in lower case, without punctuation."""
    return tuple(re.findall(r"\w+(?:['’-]\w+)*", text.lower()))


def _digit(split: str, height: int, draws: Draws) -> tuple[Any, str]:
    """A digit of a split, and its name."""
    pixels, digits = images()
    number = draws.among(numbers_of(split))
    return resized(pixels[number].reshape(SIDE, SIDE), height), NUMBERS[digits[number]]
