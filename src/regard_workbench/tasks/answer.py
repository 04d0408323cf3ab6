"""Questions about stories, from files in the form of bAbI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import BadValue
from regard.support.arguments import names_list, share, whole_number
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.formats.babi import ENDING, Asked, read_questions, words_of
from regard_workbench.tasks.formats.reading import Data, checked_encoding, excerpt, paths_of, wrong
from regard_workbench.tasks.formats.splits import checked_split, divided, listed, named_split
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.generated.rooms import story as generated_story
from regard_workbench.tasks.measures.kinds import ERROR, FAILED, error_of_kind
from regard_workbench.tasks.measures.metrics import LOSS, Answering, Metric, State
from regard_workbench.tasks.parts.batch import INPUTS, TARGETS, Batch, Stream
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown, Understood
from regard_workbench.tasks.parts.streams import StreamSpec, TokenRows, Tokens
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN, Vocabulary, Words

STORY, QUESTION = "story", "question"  # the names of the streams
GENERATED = Path("generated stories")
STRIDE, SHORT = (
    8,
    16,
)  # training stories are padded to a multiple of 8 sentences, those of up to 16 to a multiple of 2
SIZES = {"train": 12000, "validation": 400, "test": 1000}


class ToldStory(NamedTuple):
    """The words of each sentence of a story and of a question; the number of the answer where it is known."""

    story: tuple[tuple[str, ...], ...]
    question: tuple[str, ...]
    answer: int | None = None
    kind: str = ""
    training: bool = False  # whether a batch puts empty sentences between its own


@task("answer")
class StoryQuestions(Task):
    """Answers questions about stories; without files, generated stories of people, rooms and things.

    For the twenty tasks of bAbI together, with 1,000 questions each:

        regard train "answer(noise=0.1)" --data babi/en --steps 9000 --bucket 8 --optim.lr 2e-3 \\
            --model "answerer(dim=64, layers=4, num_heads=4, hops=2, dropout=0.1)" --optim.weight-decay 0

    Args:
        data: a file of bAbI (qa1_…_train.txt, …), several, or a folder; all tasks in it are learned together
        sentences: how many of the last sentences before a question are read
        noise: share of empty sentences put between those of a training story, others each time: sentences are then
            not known by their number alone
        encoding: how the files are encoded
        seed: which stories are generated; of files without test or validation, which are kept for them
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    takes = ("text",)
    metric = ERROR
    tried = ("--example", "1")
    recipe = Recipe(
        model="answerer",
        steps=1600,
        batch_size=64,
        lr=4e-3,
        warmup=100,
        clip=1.0,
        models={"answerer": "answerer(dim=48, layers=2, num_heads=4)"},
        compared=("answerer", "answerer(linear_start=300)"),
        reaches={"error": 0.04},
    )

    def __init__(
        self,
        data: Data | None = None,
        sentences: int = 50,
        noise: float = 0.1,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data = data
        self.sentences = whole_number("sentences", sentences, 1)
        self.noise = share("noise", noise)
        self.encoding = checked_encoding(encoding)
        self.seed, self.whole = whole_number("seed", seed), whole
        self.labels: list[str] = []
        self.vocabulary: Vocabulary = Words([])
        self.width = 0  # words of the longest sentence

    @cached_property
    def questions(self) -> dict[str, Sequence[Asked]]:
        """The questions of each split."""
        if self.data is None:
            return {split: Generated(size, partial(self._generated, split)) for split, size in SIZES.items()}
        found: dict[str, list[Asked]] = {}
        other = self.typed(encoding="latin-1")
        for path in self._files():
            part = list(read_questions(path, self.encoding, other))
            found.setdefault(named_split(path) or "train", []).extend(part)
        return {**divided(found, _story, self.seed, self.data, self.whole)}

    def _generated(self, split: str, index: int) -> Asked:
        sentences, question, answer, supports, kind = generated_story(self.seed, split, index)
        return Asked(tuple(sentences), question, answer, supports, kind, index, GENERATED, index + 1)

    def _files(self) -> list[Path]:
        found: list[Path] = []
        for path in paths_of(self.data) if self.data is not None else []:
            if not path.is_dir():
                found.append(path)
                continue
            inside = listed(path, (ENDING,))
            if not inside:
                folders = sorted(one.name for one in path.iterdir() if one.is_dir())
                hint = f" It has the folders {', '.join(folders[:6])}: give one of them." if folders else ""
                raise BadValue(f"data: the folder {path} has no file that ends in {ENDING}.{hint}")
            found += inside
        return sorted(found, key=lambda path: [(len(part), part) for part in re.split(r"\D+", path.name)])

    def _prepare(self) -> None:
        """Make the vocabulary from the training stories; without any, from the first split.

        The answers of all splits are in the vocabulary, as in Sukhbaatar et al. 2015: a list such as "milk,apple" may
        come in the test alone. Any word may be the answer, so that a model can share vectors between words it reads and
        answers it gives. Generated stories have few words and answers, all of which occur in the test.
        """
        rows = self._split("train" if "train" in self.questions else next(iter(self.questions)))
        parts = list(self.questions.values())
        if self.data is None:
            rows, parts = self._split("test"), [self._split("test")]
        answers = sorted({row.answer for part in parts for row in part})
        if len(answers) < 2:
            raise BadValue(f"{rows[0].path}: expected at least two answers, got only {excerpt(answers[0])}.")
        stories: dict[tuple[Path, int], Sequence[str]] = {}  # each up to its last question
        for row in rows:
            key = (row.path, row.whole)
            stories[key] = max(row.story, stories.get(key, ()), key=len)
        texts = {text for story in stories.values() for text in story} | {row.question for row in rows}
        split = [words_of(text) for text in texts]
        counts = Counter(word for words in split for word in words)
        words = sorted(counts, key=lambda word: (-counts[word], word))
        self.vocabulary = Words([*words, *(answer for answer in answers if answer not in counts)])
        self.labels = self.vocabulary.pieces(range(len(self.vocabulary)))
        self.width = max(len(words) for words in split)

    def _known(self) -> OneOf:
        """What is asked for; labels and vocabulary are made from the data where no state was restored."""
        if not self.labels:
            self._prepare()
        return OneOf(len(self.labels))

    def streams(self) -> dict[str, StreamSpec]:
        """The sentences of a story as rows of words, and the words of a question."""
        self._known()
        count = len(self.vocabulary)
        return {
            STORY: TokenRows(count, self.width, PADDING, self.sentences),
            QUESTION: Tokens(count, PADDING, self.width),
        }

    def answers(self) -> list[OneOf]:
        """One of the words, or of the answers that are no single word."""
        return [self._known()]

    def problems(self) -> list[Problem]:
        """From sentences and a question, or from all words in a row for models that read one stream."""
        answer, streams = self._known(), self.streams()
        flat = Tokens(len(self.vocabulary), PADDING, (self.sentences + 1) * self.width)
        return [Problem(streams, answer), Problem.of(flat, answer)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, the mean of the tasks' errors, and how many tasks fail."""
        return (LOSS, ERROR, FAILED)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The error of each task."""
        state = self.measured(ERROR, model, split, batch_size=batch_size, device=device)
        kinds = dict.fromkeys(one.kind for one in self.examined_examples(split))
        return [(error_of_kind(kind), state) for kind in kinds]

    def protocol(self) -> dict[str, Any]:
        """How errors are averaged."""
        return {"error": "the mean of the errors of all tasks; a task fails above 5 %"}

    def _split(self, split: str) -> Sequence[Asked]:
        if checked_split(split) not in self.questions:
            raise BadValue(f"data: {self.data} has no file for {split}. It has: {', '.join(self.questions)}.")
        return self.questions[split]

    def examples(self, split: str) -> Sequence[ToldStory]:
        """The questions of a split in the order of the files."""
        if checked_split(split) not in self._told:
            self._told[split] = self._read(split)
        return self._told[split]

    @cached_property
    def _seen(self) -> dict[tuple[str, ...], list[int]]:
        """The ids of the sentences that were read."""
        return {}

    @cached_property
    def _told(self) -> dict[str, list[ToldStory]]:
        """The examples of the splits that were asked for."""
        return {}

    def _read(self, split: str) -> list[ToldStory]:
        self._known()
        numbers = {label: number for number, label in enumerate(self.labels)}
        read: dict[str, tuple[str, ...]] = {}  # a sentence of a story comes once for each later question
        found = []
        for row in self._split(split):
            if row.answer not in numbers:
                raise wrong(row.path, row.line, f"the answer {excerpt(row.answer)} is unknown to this run.")
            texts = (*row.story[-self.sentences :], row.question)
            *story, question = (read.setdefault(text, tuple(words_of(text))) for text in texts)
            found.append(ToldStory(tuple(story), question, numbers[row.answer], row.kind, split == "train"))
        return found

    def length(self, example: ToldStory) -> int:
        """Sentences of a story, or all words of story and question, as the model reads them."""
        if STORY in self.problem.streams:
            return len(example.story)
        return sum(len(words) for words in (*example.story, example.question))

    def _ids(self, words: tuple[str, ...]) -> list[int]:
        """The ids of the words of a sentence; the same sentence comes in many stories."""
        if words not in self._seen:
            self._seen[words] = [n for word in words for n in self.vocabulary.encode(word)][: self.width]
        return self._seen[words]

    def _noisy(self, example: ToldStory, generator: torch.Generator) -> list[list[int]]:
        """The last sentences of a story; before each of them, sometimes, an empty one."""
        if not (example.training and self.noise):
            return [self._ids(words) for words in example.story]
        found: list[list[int]] = []
        empty = torch.rand(len(example.story), generator=generator) < self.noise
        for words, before in zip(example.story, empty.tolist(), strict=True):
            found += [[], self._ids(words)] if before else [self._ids(words)]
        return found[-self.sentences :]

    def collate(self, examples: Sequence[ToldStory], generator: torch.Generator) -> Batch:
        """Stories and questions padded at their ends; without targets when an example has none."""
        told = [self._noisy(example, generator) for example in examples]
        asked = [self._ids(example.question) for example in examples]
        if STORY in self.problem.streams:
            training = any(example.training for example in examples)
            ids, keep = padded(asked, PADDING)
            if training:  # of one shape, too
                ids = torch.nn.functional.pad(ids, (0, self.width - ids.shape[1]), value=PADDING)
                keep = ids != PADDING
            streams = {STORY: self._padded(told, training), QUESTION: Stream(ids, keep)}
        else:
            flat = [[number for ids in [*rows, last] for number in ids] for rows, last in zip(told, asked, strict=True)]
            streams = {INPUTS: Stream(*padded(flat, PADDING))}
        kinds = {"kind": tuple(example.kind for example in examples)}
        answers = [example.answer for example in examples if example.answer is not None]
        if not answers or len(answers) < len(examples):
            return Batch(streams, notes=kinds)
        return Batch(streams, {TARGETS: Stream(torch.tensor(answers))}, notes=kinds)

    def _padded(self, told: list[list[list[int]]], training: bool) -> Stream:
        """Stories as ids (b,sentences,words); in training of few different lengths, so that a GPU can repeat steps."""
        length = max((len(sentences) for sentences in told), default=0)
        if training:
            stride = STRIDE if length > SHORT else 2
            length = min(self.sentences, -(-length // stride) * stride)
        nothing = [PADDING] * self.width
        rows = [
            [*(ids + nothing[len(ids) :] for ids in sentences), *[nothing] * (length - len(sentences))]
            for sentences in told
        ]
        ids = torch.tensor(rows, dtype=torch.long).view(len(told), length, self.width)
        real = torch.arange(length) < torch.tensor([len(sentences) for sentences in told])[:, None]
        return Stream(ids, None if bool(real.all()) and not training else real)

    def parse(self, given: Mapping[str, str]) -> ToldStory:
        """Sentences that end in a full stop, and last a question."""
        if set(given) != {"text"}:
            found: ToldStory = super().parse(given)
            return found
        *story, question = _sentences(given["text"]) or ("",)
        if not story:
            raise BadValue(
                "--text: expected a story and a question, for instance 'Mary went to the garden. Where is Mary?', "
                f"got {excerpt(given['text'])}."
            )
        return ToldStory(tuple(tuple(words_of(one)) for one in story[-self.sentences :]), tuple(words_of(question)))

    def understood(self, given: Mapping[str, str], example: ToldStory) -> Understood:
        """Which sentences hold only known words."""
        sentences = [*example.story, example.question]
        unknown = sorted({word for words in sentences for word in words if UNKNOWN in self.vocabulary.encode(word)})
        notes = []
        if unknown:
            notes.append(f"{len(unknown):,} words are unknown to this run: {', '.join(unknown[:8])}")
        told = len(_sentences(given["text"])) - 1
        if told > len(example.story):
            notes.append(f"only the last {len(example.story):,} of {told:,} sentences were read")
        pieces = self._pieces(example)
        flat = STORY not in self.problem.streams
        known = [not any(word in unknown for word in piece.split()) for piece in pieces]
        return Understood(pieces, [word not in unknown for word in pieces] if flat else known, notes)

    def _pieces(self, example: ToldStory) -> list[str]:
        """What the positions of the first stream are called: sentences, or words."""
        if STORY in self.problem.streams:
            return [" ".join(words) for words in example.story]
        return [word for words in (*example.story, example.question) for word in words[: self.width]]

    def show(self, example: ToldStory, batch: Batch) -> Shown:
        """The sentences of the story, beside them the words of the question."""
        told = STORY in self.problem.streams
        words = f"“{' '.join(example.question)}?”"
        streams = {QUESTION: list(example.question)} if told else {}
        return Shown(words, self._pieces(example), "sentences" if told else "tokens", streams=streams)

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
            "sentences": self.sentences,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabulary, labels and sizes."""
        self.labels, self.vocabulary = (names_list("labels", state["labels"]), vocabulary.restored(state["vocabulary"]))
        self.width = whole_number("width", state["width"], 1)
        self.sentences = whole_number("sentences", state["sentences"], 1)


def _sentences(text: str) -> list[str]:
    """The sentences of a typed text: what ends in a full stop, a question mark or a line break."""
    return [part.strip() for part in re.split(r"[.?!\n]", text) if words_of(part)]


def _story(question: Asked) -> str:
    """A key that a question shares with the other questions of its story."""
    return f"{question.path.name}/{question.whole}"
