"""Questions about stories, from files in the form of bAbI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch

from regard.errors import BadValue
from regard.support.arguments import share, whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.formats.babi import ENDING, Asked, read_questions, words_of
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of, wrong
from regard_workbench.tasks.formats.splits import listed, named_split
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.generated.rooms import story as generated_story
from regard_workbench.tasks.measures.kinds import ERROR, FAILED, error_of_kind
from regard_workbench.tasks.measures.metrics import Answering, Metric, State
from regard_workbench.tasks.parts.batch import INPUTS, TARGETS, Batch, Stream
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.presenter import TypedText
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.rows_from_files import RowsFromFiles
from regard_workbench.tasks.parts.shown import Shown, Understood
from regard_workbench.tasks.parts.streams import StreamSpec, TokenRows, Tokens
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text.text_task import KnownPieces
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN, Words

STORY, QUESTION = "story", "question"  # the names of the streams
GENERATED = Path("generated stories")
STRIDE, SHORT = 8, 16  # training stories are padded to a multiple of 8 sentences, those of up to 16 to one of 2
SIZES = {"train": 12000, "validation": 400, "test": 1000}


class ToldStory(NamedTuple):
    """The words of each sentence of a story and of a question; the number of the answer where it is known."""

    story: tuple[tuple[str, ...], ...]
    question: tuple[str, ...]
    answer: int | None = None
    kind: str = ""
    training: bool = False  # whether a batch puts empty sentences between its own


@dataclass(frozen=True)
class KnownStories(KnownPieces):
    """The words that are read and answered, those of the longest sentence, and how many sentences are read."""

    labels: list[str]
    width: int
    sentences: int


class KindsJudge(Judge):
    """Measures all kinds of questions together, and in an evaluation each of them."""

    def examine(
        self, task: StoryQuestions, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        state = task.measured(ERROR, model, split, batch_size=batch_size, device=device)
        kinds = dict.fromkeys(example.kind for example in task.examined_examples(split))
        return [(error_of_kind(kind), state) for kind in kinds]


class StoryPresenter(TypedText["StoryQuestions"]):
    """Shows a story in sentences, or in words to models that read one stream."""

    def understood(self, task: StoryQuestions, given: Mapping[str, str], example: ToldStory) -> Understood:
        """Which sentences hold only known words."""
        sentences, vocabulary = [*example.story, example.question], task.fitted.vocabulary
        unknown = sorted({word for words in sentences for word in words if UNKNOWN in vocabulary.encode(word)})
        notes = []
        if unknown:
            notes.append(f"{len(unknown):,} words are unknown to this run: {', '.join(unknown[:8])}")
        story_length = len(_sentences(given["text"])) - 1
        if story_length > len(example.story):
            notes.append(f"only the last {len(example.story):,} of {story_length:,} sentences were read")
        pieces = task.input_pieces(example)
        # A piece is a sentence, of which each word must be known, or one word.
        words = [piece.split() if task.tells else [piece] for piece in pieces]
        return Understood(pieces, [not any(word in unknown for word in piece) for piece in words], notes)

    def show(self, task: StoryQuestions, example: ToldStory, batch: Batch) -> Shown:
        """The sentences of the story, beside them the words of the question."""
        words, pieces = f"“{' '.join(example.question)}?”", task.input_pieces(example)
        if not task.tells:
            return Shown(words, pieces)
        return Shown(words, pieces, "sentences", streams={QUESTION: list(example.question)})

    def decode(self, task: StoryQuestions, tokens: Sequence[int]) -> str:
        """The answer."""
        return task.fitted.labels[tokens[0]]


@task("answer")
class StoryQuestions(RowsFromFiles):
    """Answers questions about stories; without files, generated stories of people, rooms and things.

    For the twenty tasks of bAbI together, with 1,000 questions each:

        regard train "answer(noise=0.1)" --data babi/en --steps 9000 --bucket 8 --optim.lr 2e-3 \\
            --model "answerer(dim=64, layers=4, num_heads=4, hops=2, dropout=0.1)" --optim.weight-decay 0
    """

    judge = KindsJudge.by(ERROR, FAILED, error="the mean of the errors of all tasks; a task fails above 5 %")
    presenter = StoryPresenter()
    fitted = Kept(KnownStories)
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

    data: Data | None = option(
        "a file of bAbI (qa1_…_train.txt, …), several, or a folder; all tasks in it are learned together", default=None
    )
    sentences: int = option("how many of the last sentences before a question are read", at_least(1), default=50)
    noise: float = option(
        "share of empty sentences put between those of a training story, others each time: sentences are then not "
        "known by their number alone",
        share,
        default=0.1,
    )
    seed: int = option(
        "which stories are generated; of files without test or validation, which are kept for them",
        whole_number,
        default=0,
    )

    def read(self) -> Mapping[str, Sequence[Asked]]:
        if self.data is None:
            return {split: Generated(size, partial(self._generated, split)) for split, size in SIZES.items()}
        questions: dict[str, list[Asked]] = {}
        typed_encoding = self.typed(encoding="latin-1")
        for path in _files(self.data):
            split = named_split(path) or "train"
            questions.setdefault(split, []).extend(read_questions(path, self.encoding, typed_encoding))
        return questions

    def key(self, row: Asked) -> str:
        """What a question shares with the other questions of its story."""
        return f"{row.path.name}/{row.whole}"

    def _generated(self, split: str, index: int) -> Asked:
        sentences, question, answer, supports, kind = generated_story(self.seed, split, index)
        return Asked(tuple(sentences), question, answer, supports, kind, index, GENERATED, index + 1)

    def fit(self) -> KnownStories:
        """Take the words of the training stories.

        The answers of all splits are in the vocabulary, as in Sukhbaatar et al. 2015: a list such as "milk,apple" may
        come in the test alone. Any word may be the answer, so that a model can share vectors between words it reads and
        answers it gives. Generated stories have few words and answers, all of which occur in the test.
        """
        rows = self.rows_of("test") if self.data is None else self.training_rows
        splits = [rows] if self.data is None else self.rows.values()
        answers = sorted({row.answer for questions in splits for row in questions})
        if len(answers) < 2:
            raise BadValue(f"{rows[0].path}: expected at least two answers, got only {excerpt(answers[0])}.")
        stories: dict[tuple[Path, int], Sequence[str]] = {}  # each up to its last question
        for row in rows:
            story = (row.path, row.whole)
            stories[story] = max(row.story, stories.get(story, ()), key=len)
        texts = {text for story in stories.values() for text in story} | {row.question for row in rows}
        split = [words_of(text) for text in texts]
        counts = Counter(word for words in split for word in words)
        words = sorted(counts, key=lambda word: (-counts[word], word))
        vocabulary = Words([*words, *(answer for answer in answers if answer not in counts)])
        labels = vocabulary.pieces(range(len(vocabulary)))
        return KnownStories(vocabulary, labels, max(len(words) for words in split), self.sentences)

    def streams(self) -> dict[str, StreamSpec]:
        """The sentences of a story as rows of words, and the words of a question."""
        count, width = len(self.fitted.vocabulary), self.fitted.width
        return {STORY: TokenRows(count, width, PADDING, self.fitted.sentences), QUESTION: Tokens(count, PADDING, width)}

    def answers(self) -> list[OneOf]:
        """One of the words, or of the answers that are no single word."""
        return [OneOf(len(self.fitted.labels))]

    def problems(self) -> list[Problem]:
        """From sentences and a question, or from all words in a row for models that read one stream."""
        fitted, (answer,) = self.fitted, self.answers()
        flat = Tokens(len(fitted.vocabulary), PADDING, (fitted.sentences + 1) * fitted.width)
        return [Problem(self.streams(), answer), Problem.of(flat, answer)]

    @property
    def tells(self) -> bool:
        """Whether a model reads the story in sentences, and not all words in a row."""
        return STORY in self.problem.streams

    def encoded(self, rows: Sequence[Asked], *, training: bool) -> list[ToldStory]:
        numbers = {label: number for number, label in enumerate(self.fitted.labels)}
        split: dict[str, tuple[str, ...]] = {}  # a sentence of a story comes once for each later question
        stories = []
        for row in rows:
            if row.answer not in numbers:
                raise wrong(row.path, row.line, f"the answer {excerpt(row.answer)} is unknown to this run.")
            texts = (*row.story[-self.fitted.sentences :], row.question)
            *story, question = (split.setdefault(text, tuple(words_of(text))) for text in texts)
            stories.append(ToldStory(tuple(story), question, numbers[row.answer], row.kind, training))
        return stories

    def encode(self, text: str) -> ToldStory:
        """Sentences that end in a full stop, and last a question."""
        *story, question = [tuple(words_of(sentence)) for sentence in _sentences(text)] or [()]
        if not story:
            raise BadValue(
                "--text: expected a story and a question, for instance 'Mary went to the garden. Where is Mary?', "
                f"got {excerpt(text)}."
            )
        return ToldStory(tuple(story[-self.fitted.sentences :]), question)

    def input_pieces(self, example: ToldStory) -> list[str]:
        """What the positions of the first stream are called: sentences, or words."""
        if self.tells:
            return [" ".join(words) for words in example.story]
        return [word for words in (*example.story, example.question) for word in words[: self.fitted.width]]

    def length(self, example: ToldStory) -> int:
        """Sentences of a story, or all words of story and question, as the model reads them."""
        if self.tells:
            return len(example.story)
        return sum(len(words) for words in (*example.story, example.question))

    @cached_property
    def _read(self) -> dict[tuple[str, ...], list[int]]:
        """The ids of the sentences that were read."""
        return {}

    def _ids(self, words: tuple[str, ...]) -> list[int]:
        """The ids of the words of a sentence; the same sentence comes in many stories."""
        if words not in self._read:
            ids = [number for word in words for number in self.fitted.vocabulary.encode(word)]
            self._read[words] = ids[: self.fitted.width]
        return self._read[words]

    def _noisy(self, example: ToldStory, generator: torch.Generator) -> list[list[int]]:
        """The last sentences of a story; before each of them, sometimes, an empty one."""
        if not (example.training and self.noise):
            return [self._ids(words) for words in example.story]
        sentences: list[list[int]] = []
        empty = torch.rand(len(example.story), generator=generator) < self.noise
        for words, before in zip(example.story, empty.tolist(), strict=True):
            sentences += [[], self._ids(words)] if before else [self._ids(words)]
        return sentences[-self.fitted.sentences :]

    def collate(self, examples: Sequence[ToldStory], generator: torch.Generator) -> Batch:
        """Stories and questions padded at their ends; without targets when an example has none."""
        stories = [self._noisy(example, generator) for example in examples]
        questions = [self._ids(example.question) for example in examples]
        if self.tells:
            training = any(example.training for example in examples)
            ids, keep = padded(questions, PADDING)
            if training:  # of one shape, too
                ids = torch.nn.functional.pad(ids, (0, self.fitted.width - ids.shape[1]), value=PADDING)
                keep = ids != PADDING
            streams = {STORY: self._padded(stories, training), QUESTION: Stream(ids, keep)}
        else:
            flat = [
                [number for ids in [*rows, last] for number in ids]
                for rows, last in zip(stories, questions, strict=True)
            ]
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
            length = min(self.fitted.sentences, -(-length // stride) * stride)
        width = self.fitted.width
        nothing = [PADDING] * width
        rows = [
            [*(ids + nothing[len(ids) :] for ids in sentences), *[nothing] * (length - len(sentences))]
            for sentences in told
        ]
        ids = torch.tensor(rows, dtype=torch.long).view(len(told), length, width)
        real = torch.arange(length) < torch.tensor([len(sentences) for sentences in told])[:, None]
        return Stream(ids, None if bool(real.all()) and not training else real)


def _files(data: Data) -> list[Path]:
    """The files of questions, in the order of the numbers in their names."""
    files: list[Path] = []
    for path in paths_of(data):
        if not path.is_dir():
            files.append(path)
            continue
        inside = listed(path, (ENDING,))
        if not inside:
            folders = sorted(folder.name for folder in path.iterdir() if folder.is_dir())
            hint = f" It has the folders {', '.join(folders[:6])}: give one of them." if folders else ""
            raise BadValue(f"data: the folder {path} has no file that ends in {ENDING}.{hint}")
        files += inside
    return sorted(files, key=lambda path: [(len(digits), digits) for digits in re.split(r"\D+", path.name)])


def _sentences(text: str) -> list[str]:
    """The sentences of a typed text: what ends in a full stop, a question mark or a line break."""
    return [sentence.strip() for sentence in re.split(r"[.?!\n]", text) if words_of(sentence)]
