"""Named entities: a BIO tag for each word of a sentence, from files in CoNLL columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.support.arguments import finite_number, names_list, share, whole_number
from regard_workbench.tasks.answers.tags import OUTSIDE, Tags
from regard_workbench.tasks.figures.marked_words import marked_words_figure
from regard_workbench.tasks.formats.conll import SCHEMES, TaggedSentence, read_sentences
from regard_workbench.tasks.formats.reading import Data, checked_encoding, excerpt, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import checked_split, chosen_files, divided, listed, named_split
from regard_workbench.tasks.generated.dispatches import dispatches
from regard_workbench.tasks.measures.entities import ACCURACY, F1, PRECISION, RECALL, entities, f1_of_type
from regard_workbench.tasks.measures.metrics import LOSS, Answering, Metric, State
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Looked, Shown, Understood, texts, understood, unknown_notes
from regard_workbench.tasks.parts.streams import StreamSpec
from regard_workbench.tasks.parts.task import SPLITS, Recipe, Task, task
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


@task("tag")
class Tag(Task):
    """Finds names in sentences: a tag for each word; without a file, generated sentences with made-up names.

    Few names of a new text occur in the training sentences of a small set. Plain text tells what sort of words the
    others are, by vectors counted from it, or by what `hidden-words` learned from it:

        regard train "tag(text='wiki.txt', vectors=100, hide_rare=1, outside=1.5)" \\
            --data wnut17 --steps 3000 --batch-size 16 --optim.average 0.995

    With `--init-from` a checkpoint (BERT, RoBERTa) sentences are read in its pieces, and the tag of a word is that of
    its first piece; what else is said here about words is then not read:

        regard train tag --data wnut17 --init-from hf:NAME --steps 640 --batch-size 16 --optim.lr 5e-5

    Args:
        data: a file in CoNLL columns (word first, tag last, in BIO, IOB1 or both), several, or a folder of them
        scheme: bio or iob1: of which tags it is said that they were repaired; default: the one that most tags obey
        text: files of plain text without tags whose words are known, too: those that `hidden-words` learned from
        lower: words are looked up in lower case; capitals are seen by models that read characters
        min_count: how often a word must occur in training to be known
        hide_rare: in training a word seen c times is hidden in hide_rare / (hide_rare + c) of the cases
        exchange: share of the entities of a training sentence replaced by another entity of their type, each time anew
        word_length: characters of a word that are read: of a longer one its beginning and its end
        shapes: whether the shape of a word (capitals, small letters, digits) is given, too
        parts: number of vectors for hashed character n-grams, added to those of words; 0 for none
        vectors: width of vectors of words, counted from text and training sentences and not changed in training: names
            that only the text knows are then read like their neighbours; 0 for none
        clues: how often a clue to what a word is must occur in training to be known: neighbours, shapes, beginnings and
            ends, how plain text writes it, groups of similar words (with vectors); 0: none are given
        outside: added to the scores of O in training alone: above 0 finds more entities, with more errors among them
        encoding: how the files are encoded
        seed: which sentences are generated; of a file without dev or test, which are kept for them
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    takes: ClassVar[tuple[str, ...]] = ("text",)
    pretrained_vocabulary: ClassVar[bool] = True
    metric: ClassVar[Metric] = F1
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

    def __init__(
        self,
        data: Data | None = None,
        scheme: str | None = None,
        text: Data | None = None,
        lower: bool = True,
        min_count: int = 1,
        hide_rare: float = 0.5,
        exchange: float = 0.0,
        word_length: int = 20,
        shapes: bool = True,
        parts: int = 0,
        vectors: int = 0,
        clues: int = 0,
        outside: float = 0.0,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        if scheme is not None and scheme not in SCHEMES:
            raise unknown_name("scheme", scheme, SCHEMES)
        self.data, self.scheme, self.text = data, scheme, text
        self.min_count = whole_number("min_count", min_count, 1)
        self.hide_rare = finite_number("hide_rare", hide_rare)
        if self.hide_rare < 0:
            raise BadValue(f"hide_rare: expected 0 or more, got {hide_rare}.")
        self.exchange = share("exchange", exchange)
        self.forms = WordForms(lower=lower, width=word_length, shapes=shapes, parts=parts, vectors=vectors, clues=clues)
        self.outside = finite_number("outside", outside)
        self.encoding = checked_encoding(encoding)
        self.seed, self.whole = whole_number("seed", seed), whole
        self.tags: tuple[str, ...] = ()
        self.pieces: WordPieces | None = None  # where a checkpoint says how sentences are read

    @cached_property
    def sentences(self) -> dict[str, list[TaggedSentence]]:
        """The tagged sentences of each split."""
        if self.data is None:
            return {
                split: [
                    TaggedSentence(tuple(words), tuple(tags), GENERATED, number)
                    for number, (words, tags) in enumerate(dispatches(self.seed, split, count), 1)
                ]
                for split, count in SIZES.items()
            }
        other = self.typed(encoding="latin-1")
        files = self._files()
        read = read_sentences(
            {str(path): path for some in files.values() for path in some}, self.scheme, self.encoding, other
        )
        parts = {split: [one for path in some for one in read[str(path)]] for split, some in files.items()}
        return divided(parts, lambda one: " ".join(one.words), self.seed, self.data, self.whole)

    @cached_property
    def untagged(self) -> list[tuple[str, ...]]:
        """The sentences of the plain text, or as many words of a long line."""
        if self.text is None:
            return []
        other = self.typed(encoding="latin-1")
        lines = [split_words(line) for path in paths_of(self.text) for line in read_lines(path, self.encoding, other)]
        return [tuple(line[at : at + LONG]) for line in lines for at in range(0, len(line), LONG)]

    def _files(self) -> dict[str, list[Path]]:
        """The files of each split; those that are called after none are for training."""
        paths = paths_of(self.data) if self.data is not None else []
        every = [path for given in paths for path in (listed(given) if given.is_dir() else [given])]
        for split in SPLITS:
            some = [path for path in every if named_split(path) == split]
            if len(some) > 1:
                raise BadValue(
                    f"data: {some[0]} and {some[1]} are both called {split}. Give the files of one set: TRAIN,DEV,TEST."
                )
        if not every:
            raise BadValue(f"data: there is no file in {', '.join(map(str, paths))}.")
        return chosen_files(paths)

    def _prepare(self) -> None:
        """Make tags and vocabularies from the training sentences; without any, from the first split."""
        rows = self._split("train" if "train" in self.sentences else next(iter(self.sentences)))
        types = sorted({tag[2:] for row in rows for tag in row.tags if tag != OUTSIDE})
        if not types:
            raise BadValue(f"{rows[0].path}: expected tags such as B-person, got only {OUTSIDE}.")
        self.tags = (OUTSIDE, *(f"{mark}-{type}" for type in types for mark in "BI"))
        self.forms.learn([row.words for row in rows], self.untagged, self.min_count)

    def _known(self) -> Tags:
        """What is asked for; tags and vocabularies are made from the data where no state was restored."""
        if not self.tags:
            self._prepare()
        return Tags(self.tags, self.outside)

    def streams(self) -> dict[str, StreamSpec]:
        """The words of a sentence, the characters of each, and its shape; or the pieces of a checkpoint."""
        self._known()
        return self.forms.streams() if self.pieces is None else {WORDS: self.pieces.stream()}

    def answers(self) -> list[Tags]:
        """The tags of all words together."""
        return [self._known()]

    def problems(self) -> list[Problem]:
        """From all that is known of words, or from words alone for models that read one stream."""
        answer, streams = self._known(), self.streams()
        return [Problem(streams, answer), Problem({WORDS: streams[WORDS]}, answer)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss; F1, precision and recall of entities; accuracy over words."""
        return (LOSS, F1, PRECISION, RECALL, ACCURACY)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The F1 of each type of entity."""
        state = self.measured(F1, model, split, batch_size=batch_size, device=device)
        return [(f1_of_type(tag[2:]), state) for tag in self.tags if tag.startswith("B-")]

    def protocol(self) -> dict[str, Any]:
        """How entities are counted."""
        return {"f1": "entities by the rules of conlleval: first word, last word and type must be right"}

    def _split(self, split: str) -> list[TaggedSentence]:
        if checked_split(split) not in self.sentences:
            raise BadValue(f"data: {self.data} has no file for {split}. It has: {', '.join(self.sentences)}.")
        return self.sentences[split]

    def examples(self, split: str) -> Sequence[Sentence]:
        """The sentences of a split in the order of the file."""
        self._known()
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        found = []
        for row in self._split(split):
            unknown = next((at for at, tag in enumerate(row.tags) if tag not in numbers), None)
            if unknown is not None:
                types = ", ".join(excerpt(tag[2:]) for tag in self.tags if tag[:2] == "B-")
                raise wrong(
                    row.path,
                    row.line + unknown,
                    f"the type of {excerpt(row.tags[unknown])} does not occur in the training data. Known: {types}.",
                )
            found.append(Sentence(row.words, tuple(numbers[tag] for tag in row.tags), split == "train"))
        return found

    def length(self, example: Sentence) -> int:
        """Words of a sentence."""
        return len(example.words)

    @cached_property
    def _hiding(self) -> Tensor:
        """For each id of a word, in which share of the cases training hides it."""
        counts = Counter(self.forms.of(word).word for row in self._split("train") for word in row.words)
        seen = torch.tensor([float(counts[number]) for number in range(len(self.forms.words))])
        return torch.where(seen > 0, self.hide_rare / (self.hide_rare + seen), 0.0)

    @cached_property
    def _by_type(self) -> dict[str, list[tuple[str, ...]]]:
        """The words of every training entity, by type."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for row in self._split("train"):
            for entity in entities(row.tags):
                found.setdefault(entity.type, []).append(row.words[entity.first : entity.end])
        return found

    def _exchanged(self, example: Sentence, generator: torch.Generator) -> Sentence:
        """A training sentence in which some entities are replaced by others of their type."""
        assert example.tags is not None
        words, tags = list(example.words), list(example.tags)
        for entity in reversed(entities([self.tags[tag] for tag in tags])):
            if float(torch.rand((), generator=generator)) < self.exchange:
                others = self._by_type[entity.type]
                other = others[int(torch.randint(len(others), (), generator=generator))]
                begin = tags[entity.first]
                words[entity.first : entity.end] = other
                # B-TYPE and I-TYPE of one type are neighbours in the list of tags.
                tags[entity.first : entity.end] = [begin, *[begin + 1] * (len(other) - 1)]
        return Sentence(tuple(words), tuple(tags), True)

    def collate(self, examples: Sequence[Sentence], generator: torch.Generator) -> Batch:
        """Sentences padded at their ends; training hides rare words and exchanges entities."""
        if self.exchange:
            examples = [self._exchanged(one, generator) if one.training else one for one in examples]
        sentences = [one.words for one in examples]
        labelled = bool(examples) and all(one.tags is not None for one in examples)
        notes = {
            "tags": tuple(tuple(self.tags[tag] for tag in one.tags or ()) for one in examples),
            "names": (self.tags,) * len(examples),
        }
        if self.pieces is not None:
            batch = self.pieces.batch(sentences, [one.tags or () for one in examples] if labelled else None)
            return replace(batch, notes={**batch.notes, **notes}) if labelled else batch
        words, keep = self.forms.word_ids(sentences)
        unhidden = words
        training = torch.tensor([one.training for one in examples], dtype=torch.bool)
        if self.hide_rare and bool(training.any()):
            hidden = torch.rand(words.shape, generator=generator) < self._hiding[words]
            words = words.masked_fill(hidden & training[:, None], UNKNOWN)
        streams = {WORDS: Stream(self.forms.with_parts(words, sentences), keep)}
        if CHARACTERS in self.problem.streams:
            streams[CHARACTERS] = Stream(self.forms.letter_ids(sentences, words.shape[1]), keep)
        if SHAPES in self.problem.streams:
            streams[SHAPES] = Stream(self.forms.shape_ids(sentences), keep)
        if VECTORS in self.problem.streams:
            streams[VECTORS] = Stream(unhidden, keep)
        if CLUES in self.problem.streams:
            streams[CLUES] = Stream(self.forms.clue_ids(sentences, words.shape[1]), keep)
        if not labelled:
            return Batch(streams)
        tags, _ = padded([one.tags or () for one in examples], 0)
        return Batch(streams, {TARGETS: Stream(tags, keep)}, notes=notes)

    def parse(self, given: Mapping[str, str]) -> Sentence:
        """A sentence whose words stand between spaces."""
        if set(given) != {"text"}:
            found: Sentence = super().parse(given)
            return found
        words = tuple(split_words(given["text"]))
        if not words:
            raise BadValue("--text: expected a sentence, got none.")
        return Sentence(words)

    def understood(self, given: Mapping[str, str], example: Sentence) -> Understood:
        """Which words the vocabulary holds."""
        if self.pieces is not None:
            ids = self.pieces.ids(example.words)
            return understood(self.pieces.vocabulary, ids, " ".join(example.words), "first")
        known = [self.forms.of(word).word != UNKNOWN for word in example.words]
        read = "; their characters are read" if CHARACTERS in self.problem.streams else ""
        return Understood(list(example.words), known, [note + read for note in unknown_notes(known)])

    def show(self, example: Sentence, batch: Batch) -> Shown:
        """The words, or their pieces, as many as the batch holds."""
        if self.pieces is not None:
            return texts(self.pieces.shown(example.words))
        return texts(example.words[: batch.inputs.shape[1]])

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The tag at each position."""
        return [self.tags[token] for token in tokens]

    def answer_text(self, predicted: Sequence[int], example: Sentence) -> str:
        """The sentence with its entities in brackets, each with its type."""
        words = list(example.words)
        for entity in entities(self.output_pieces(predicted)):
            words[entity.first] = "[" + words[entity.first]
            words[entity.end - 1] += f"]({entity.type})"
        return " ".join(words)

    def draw(self, predicted: Sequence[int], example: Sentence, looked: Looked | None) -> Figure | None:
        """The sentence with its entities marked."""
        spans = [(one.first, one.end - 1, one.type) for one in entities(self.output_pieces(predicted))]
        return marked_words_figure(example.words, spans)

    def state(self) -> dict[str, Any]:
        """Tags and vocabularies."""
        self._known()
        read = {**self.forms.state(), "max_length": None} if self.pieces is None else self.pieces.state()
        return {"tags": list(self.tags), **read}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore tags and vocabularies."""
        self.tags = tuple(names_list("tags", state["tags"]))
        self.pieces = WordPieces.restored(state)
        if self.pieces is None:
            self.forms.restore(state)
            return
        for name in ("text", "parts", "vectors", "clues"):
            if self.given.get(name):
                raise BadValue(
                    f"{name}: sentences are read in the pieces of a checkpoint, which has a vocabulary of its own. "
                    f"Leave {name} out, or begin without the checkpoint."
                )
