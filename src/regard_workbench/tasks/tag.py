"""Named entities: a BIO tag for each word of a sentence, from files in CoNLL columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import finite_number, names_list, not_negative, share, whole_number
from regard.support.declared import at_least, one_of, option
from regard_workbench.tasks.answers import Answer
from regard_workbench.tasks.answers.tags import OUTSIDE, Tags
from regard_workbench.tasks.figures.marked_words import marked_words_figure
from regard_workbench.tasks.formats.conll import SCHEMES, TaggedSentence, read_sentences, tagged_files
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of, read_lines, wrong
from regard_workbench.tasks.generated.dispatches import dispatches
from regard_workbench.tasks.measures.entities import ACCURACY, F1, PRECISION, RECALL, entities, f1_of_type
from regard_workbench.tasks.measures.metrics import Answering, Metric, State
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.presenter import TypedText
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.rows_from_files import RowsFromFiles
from regard_workbench.tasks.parts.shared_options import MIN_COUNT
from regard_workbench.tasks.parts.shown import Looked, Shown, Understood, texts, understood, unknown_notes
from regard_workbench.tasks.parts.streams import StreamSpec
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.vocabulary import UNKNOWN
from regard_workbench.tasks.text.word_forms import CHARACTERS, CLUES, SHAPES, VECTORS, WORDS, WordForms
from regard_workbench.tasks.text.word_pieces import WordPieces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GENERATED = Path("generated sentences")
LONG = 40  # words of a line of plain text that make an example
SIZES = {"train": 2000, "validation": 300, "test": 500}


class Sentence(NamedTuple):
    """The words of a sentence and, where they are known, the numbers of their tags."""

    words: tuple[str, ...]
    tags: tuple[int, ...] | None = None
    training: bool = False  # whether a batch may hide its rare words and exchange its entities


@dataclass(frozen=True)
class KnownWords(Fitted):
    """The tags, and how words are read: by vocabularies of the training sentences, or in the pieces of a checkpoint."""

    tags: tuple[str, ...]
    words: WordForms | WordPieces

    def state(self) -> dict[str, Any]:
        return {"tags": list(self.tags), **self.words.state()}

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        tags, pieces = tuple(names_list("tags", state["tags"])), WordPieces.restored(state)
        for name in ("text", "parts", "vectors", "clues") if pieces else ():
            if task.given.get(name):
                raise BadValue(
                    f"{name}: sentences are read in the pieces of a checkpoint, which has a vocabulary of its own. "
                    f"Leave {name} out, or begin without the checkpoint."
                )
        return cls(tags, pieces or WordForms.restored(state))


class EntityJudge(Judge):
    """Measures entities of all types together, and in an evaluation those of each type."""

    def examine(
        self, task: Tag, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        state = task.measured(F1, model, split, batch_size=batch_size, device=device)
        return [(f1_of_type(tag[2:]), state) for tag in task.fitted.tags if tag.startswith("B-")]


class SentencePresenter(TypedText["Tag"]):
    """Shows a sentence in words, or in the pieces of a checkpoint, and its entities in brackets."""

    def understood(self, task: Tag, given: Mapping[str, str], example: Sentence) -> Understood:
        """Which words the vocabulary holds."""
        read = task.fitted.words
        if isinstance(read, WordPieces):
            return understood(read.vocabulary, read.ids(example.words), " ".join(example.words), "first")
        in_vocabulary = [read.of(word).word != UNKNOWN for word in example.words]
        more = "; their characters are read" if CHARACTERS in task.problem.streams else ""
        return Understood(list(example.words), in_vocabulary, [note + more for note in unknown_notes(in_vocabulary)])

    def show(self, task: Tag, example: Sentence, batch: Batch) -> Shown:
        """The words, or their pieces, as many as the batch holds."""
        read, words = task.fitted.words, example.words
        return texts(read.shown(words) if isinstance(read, WordPieces) else words[: batch.inputs.shape[1]])

    def output_pieces(self, task: Tag, tokens: Sequence[int]) -> list[str]:
        """The tag at each position."""
        return [task.fitted.tags[token] for token in tokens]

    def answer_text(self, task: Tag, predicted: Sequence[int], example: Sentence) -> str:
        """The sentence with its entities in brackets, each with its type."""
        words = list(example.words)
        for entity in entities(task.output_pieces(predicted)):
            words[entity.first] = "[" + words[entity.first]
            words[entity.end - 1] += f"]({entity.type})"
        return " ".join(words)

    def draw(self, task: Tag, predicted: Sequence[int], example: Sentence, looked: Looked | None) -> Figure | None:
        """The sentence with its entities marked."""
        predicted_entities = entities(task.output_pieces(predicted))
        return marked_words_figure(
            example.words, [(entity.first, entity.end - 1, entity.type) for entity in predicted_entities]
        )


@task("tag")
class Tag(RowsFromFiles):
    """Finds names in sentences: a tag for each word; without a file, generated sentences with made-up names.

    Few names of a new text occur in the training sentences of a small set. Plain text tells what sort of words the
    others are, by vectors counted from it, or by what `hidden-words` learned from it:

        regard train "tag(text='wiki.txt', vectors=100, hide_rare=1, outside=1.5)" \\
            --data wnut17 --steps 3000 --batch-size 16 --optim.average 0.995

    With `--init-from` a checkpoint (BERT, RoBERTa) sentences are read in its pieces, and the tag of a word is that of
    its first piece; what else is said here about words is then not read:

        regard train tag --data wnut17 --init-from hf:NAME --steps 640 --batch-size 16 --optim.lr 5e-5
    """

    judge = EntityJudge.by(
        F1,
        PRECISION,
        RECALL,
        ACCURACY,
        f1="entities by the rules of conlleval: first word, last word and type must be right",
    )
    presenter = SentencePresenter()
    fitted = Kept(KnownWords)
    pretrained_vocabulary = True
    tried = ("--text", "yesterday mr. Velko Brant of Tarnix Labs flew to Ordenburg")
    recipe = Recipe(
        model="tagger",
        steps=600,
        batch_size=32,
        lr=2e-3,
        warmup=50,
        compared=("tagger", "tagger(crf=false)"),
        reaches={"f1": 0.95},
    )

    data: Data | None = option(
        "a file in CoNLL columns (word first, tag last, in BIO, IOB1 or both), several, or a folder of them",
        default=None,
    )
    scheme: str | None = option(
        "bio or iob1: of which tags it is said that they were repaired; default: the one that most tags obey",
        one_of(SCHEMES),
        default=None,
    )
    text: Data | None = option(
        "files of plain text without tags whose words are known, too: those that `hidden-words` learned from",
        default=None,
    )
    lower: bool = option(
        "words are looked up in lower case; capitals are seen by models that read characters", default=True
    )
    min_count: int = MIN_COUNT
    hide_rare: float = option(
        "in training a word seen c times is hidden in hide_rare / (hide_rare + c) of the cases",
        not_negative,
        default=0.5,
    )
    exchange: float = option(
        "share of the entities of a training sentence replaced by another entity of their type, each time anew",
        share,
        default=0.0,
    )
    word_length: int = option(
        "characters of a word that are read: of a longer one its beginning and its end", at_least(2), default=20
    )
    shapes: bool = option("whether the shape of a word (capitals, small letters, digits) is given, too", default=True)
    parts: int = option(
        "number of vectors for hashed character n-grams, added to those of words; 0 for none", at_least(0), default=0
    )
    vectors: int = option(
        "width of vectors of words, counted from text and training sentences and not changed in training: names that "
        "only the text knows are then read like their neighbours; 0 for none",
        at_least(0),
        default=0,
    )
    clues: int = option(
        "how often a clue to what a word is must occur in training to be known: neighbours, shapes, beginnings and "
        "ends, how plain text writes it, groups of similar words (with vectors); 0: none are given",
        at_least(0),
        default=0,
    )
    outside: float = option(
        "added to the scores of O in training alone: above 0 finds more entities, with more errors among them",
        finite_number,
        default=0.0,
    )
    seed: int = option(
        "which sentences are generated; of a file without dev or test, which are kept for them", whole_number, default=0
    )

    def read(self) -> dict[str, list[TaggedSentence]]:
        if self.data is None:
            return {
                split: [
                    TaggedSentence(tuple(words), tuple(tags), GENERATED, number)
                    for number, (words, tags) in enumerate(dispatches(self.seed, split, count), 1)
                ]
                for split, count in SIZES.items()
            }
        files = tagged_files(paths_of(self.data))
        every = {str(path): path for paths in files.values() for path in paths}
        sentences = read_sentences(every, self.scheme, self.encoding, self.typed(encoding="latin-1"))
        return {split: [row for path in paths for row in sentences[str(path)]] for split, paths in files.items()}

    def key(self, row: TaggedSentence) -> str:
        return " ".join(row.words)

    @cached_property
    def untagged(self) -> list[tuple[str, ...]]:
        """The sentences of the plain text, or as many words of a long line."""
        if self.text is None:
            return []
        typed_encoding = self.typed(encoding="latin-1")
        lines = [
            split_words(line)
            for path in paths_of(self.text)
            for line in read_lines(path, self.encoding, typed_encoding)
        ]
        return [tuple(line[at : at + LONG]) for line in lines for at in range(0, len(line), LONG)]

    def fit(self) -> KnownWords:
        rows = self.training_rows
        types = sorted({tag[2:] for row in rows for tag in row.tags if tag != OUTSIDE})
        if not types:
            raise BadValue(f"{rows[0].path}: expected tags such as B-person, got only {OUTSIDE}.")
        forms = WordForms(
            lower=self.lower,
            width=self.word_length,
            shapes=self.shapes,
            parts=self.parts,
            vectors=self.vectors,
            clues=self.clues,
        )
        forms.learn([row.words for row in rows], self.untagged, self.min_count)
        return KnownWords((OUTSIDE, *(f"{mark}-{type}" for type in types for mark in "BI")), forms)

    def streams(self) -> dict[str, StreamSpec]:
        """The words of a sentence, the characters of each, and its shape; or the pieces of a checkpoint."""
        return self.fitted.words.streams()

    @property
    def forms(self) -> WordForms:
        """The vocabularies of words, where sentences are not read in the pieces of a checkpoint."""
        assert isinstance(self.fitted.words, WordForms)
        return self.fitted.words

    def answers(self) -> Sequence[Answer]:
        """The tags of all words together."""
        return [Tags(self.fitted.tags, self.outside)]

    def problems(self) -> list[Problem]:
        """From all that is known of words, or from words alone for models that read one stream."""
        streams, (answer,) = self.streams(), self.answers()
        return [Problem(streams, answer), Problem({WORDS: streams[WORDS]}, answer)]

    def encoded(self, rows: Sequence[TaggedSentence], *, training: bool) -> list[Sentence]:
        tags = self.fitted.tags
        numbers = {tag: number for number, tag in enumerate(tags)}
        sentences = []
        for row in rows:
            unknown = next((at for at, tag in enumerate(row.tags) if tag not in numbers), None)
            if unknown is not None:
                types = ", ".join(excerpt(tag[2:]) for tag in tags if tag[:2] == "B-")
                raise wrong(
                    row.path,
                    row.line + unknown,
                    f"the type of {excerpt(row.tags[unknown])} does not occur in the training data. Known: {types}.",
                )
            sentences.append(Sentence(row.words, tuple(numbers[tag] for tag in row.tags), training))
        return sentences

    def encode(self, text: str) -> Sentence:
        """The sentence of a typed text, whose words stand between spaces."""
        words = tuple(split_words(text))
        if not words:
            raise BadValue("--text: expected a sentence, got none.")
        return Sentence(words)

    def length(self, example: Sentence) -> int:
        """Words of a sentence."""
        return len(example.words)

    @cached_property
    def _hiding(self) -> Tensor:
        """For each id of a word, in which share of the cases training hides it."""
        counts = Counter(self.forms.of(word).word for row in self.rows_of("train") for word in row.words)
        frequencies = torch.tensor([float(counts[number]) for number in range(len(self.forms.words))])
        return torch.where(frequencies > 0, self.hide_rare / (self.hide_rare + frequencies), 0.0)

    @cached_property
    def _by_type(self) -> dict[str, list[tuple[str, ...]]]:
        """The words of every training entity, by type."""
        names: dict[str, list[tuple[str, ...]]] = {}
        for row in self.rows_of("train"):
            for entity in entities(row.tags):
                names.setdefault(entity.type, []).append(row.words[entity.first : entity.end])
        return names

    def _exchanged(self, example: Sentence, generator: torch.Generator) -> Sentence:
        """A training sentence in which some entities are replaced by others of their type."""
        assert example.tags is not None
        words, tags = list(example.words), list(example.tags)
        for entity in reversed(entities([self.fitted.tags[tag] for tag in tags])):
            if float(torch.rand((), generator=generator)) < self.exchange:
                substitutes = self._by_type[entity.type]
                substitute = substitutes[int(torch.randint(len(substitutes), (), generator=generator))]
                begin = tags[entity.first]
                words[entity.first : entity.end] = substitute
                # B-TYPE and I-TYPE of one type are neighbours in the list of tags.
                tags[entity.first : entity.end] = [begin, *[begin + 1] * (len(substitute) - 1)]
        return Sentence(tuple(words), tuple(tags), True)

    def collate(self, examples: Sequence[Sentence], generator: torch.Generator) -> Batch:
        """Sentences padded at their ends; training hides rare words and exchanges entities."""
        tag_names, read = self.fitted.tags, self.fitted.words
        if self.exchange:
            examples = [self._exchanged(example, generator) if example.training else example for example in examples]
        sentences = [example.words for example in examples]
        numbers = [example.tags or () for example in examples]
        labelled = bool(examples) and all(example.tags is not None for example in examples)
        notes = {
            "tags": tuple(tuple(tag_names[tag] for tag in tags) for tags in numbers),
            "names": (tag_names,) * len(examples),
        }
        if isinstance(read, WordPieces):
            batch = read.batch(sentences, numbers if labelled else None)
            return replace(batch, notes={**batch.notes, **notes}) if labelled else batch
        words, keep = read.word_ids(sentences)
        unhidden = words
        training = torch.tensor([example.training for example in examples], dtype=torch.bool)
        if self.hide_rare and bool(training.any()):
            hidden = torch.rand(words.shape, generator=generator) < self._hiding[words]
            words = words.masked_fill(hidden & training[:, None], UNKNOWN)
        streams = {WORDS: Stream(read.with_parts(words, sentences), keep)}
        if CHARACTERS in self.problem.streams:
            streams[CHARACTERS] = Stream(read.letter_ids(sentences, words.shape[1]), keep)
        if SHAPES in self.problem.streams:
            streams[SHAPES] = Stream(read.shape_ids(sentences), keep)
        if VECTORS in self.problem.streams:
            streams[VECTORS] = Stream(unhidden, keep)
        if CLUES in self.problem.streams:
            streams[CLUES] = Stream(read.clue_ids(sentences, words.shape[1]), keep)
        if not labelled:
            return Batch(streams)
        return Batch(streams, {TARGETS: Stream(padded(numbers, 0)[0], keep)}, notes=notes)
