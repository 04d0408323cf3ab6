"""Classification of texts, from a table with a text and a label column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from regard.errors import BadValue
from regard.support.arguments import names_list, share, whole_number
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.formats import hub
from regard_workbench.tasks.formats.reading import Data, checked_encoding, excerpt, paths_of, wrong
from regard_workbench.tasks.formats.splits import checked_split, chosen_files, divided
from regard_workbench.tasks.formats.tables import ENDINGS, LABEL, TEXT, Columns, Row, find_columns, labelled, read_table
from regard_workbench.tasks.generated.opinions import opinions
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, SHARE, Answered, Counts, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shown import Shown, Understood, texts, understood
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.naive_bayes import NaiveBayes
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.text.vocabulary import PADDING, Vocabulary, words_of
from regard_workbench.tasks.text.word_parts import WordsWithParts, parts_of

EMBEDDED = Path("embedded sentences")


class Labelled(NamedTuple):
    """The ids of a text and the number of its class."""

    tokens: Sequence[int]
    label: int | None = None
    hidden: float = 0.0  # the share of its pieces that a batch hides
    parts: torch.Tensor | None = None  # (n,MOST): the ids of the parts of its words
    scores: list[float] | None = None  # of naive Bayes, one for each class


def _of_classes(answered: Answered) -> dict[str, float]:
    """For each class: the number of correct predictions, of predictions and of targets."""
    guessed, true = answered.outputs.argmax(-1), answered.batch.targets
    assert true is not None
    found: dict[str, float] = {"texts": len(true)}
    for name, values in (("hits", true[guessed == true]), ("guessed", guessed), ("true", true)):
        for number, count in enumerate(torch.bincount(values).tolist()):
            if count:
                found[f"{name} {number}"] = count
    return found


def _macro_f1(counts: Mapping[str, float]) -> float:
    """The mean F1 over the classes that occur in targets or predictions."""
    numbers = {name.rpartition(" ")[2] for name in counts if name.startswith(("guessed ", "true "))}
    scores = []
    for number in sorted(numbers, key=int):
        hits, guessed, true = (counts.get(f"{name} {number}", 0.0) for name in ("hits", "guessed", "true"))
        if guessed + true:
            scores.append(2 * hits / (guessed + true))
    return sum(scores) / len(scores) if scores else math.nan


MACRO_F1 = Counts("macro_f1", unit=SHARE, look=_of_classes, made=_macro_f1, total="texts")


@task("classify")
class Classify(Task):
    """Classifies texts; without a file, generated sentences that praise or blame.

    Args:
        data: a TSV, CSV or JSON-lines file, plain or .gz, a folder with train, dev and test files, or hf:NAME
        text_column: name or number (from 1) of the column with the text; found by default
        label_column: name or number (from 1) of the column with the label; found by default
        level: word, character or bpe (sub-words)
        vocabulary_size: how many different pieces (bpe: 4096 by default)
        min_count: how often a word or character must occur in training to be known
        max_length: longest text in pieces, where there are such long ones; longer ones are cut
        hide: share of a training text's pieces made unknown, others each time: small data is not learned by heart
        parts: number of vectors for hashed character n-grams, added to those of words (level=word); 0 for none
        naive_bayes: longest run of words that naive Bayes counts, whose scores are added to the logits; 0 for none
        encoding: how the files are encoded
        seed: which lines are kept for validation and test where there are no files for them
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    takes = ("text",)
    pretrained_vocabulary = True
    tried = ("--text", "a fine evening")
    recipe = Recipe(model="encoder", steps=1000, batch_size=32, lr=5e-4, warmup=100, reaches={"accuracy": 0.97})

    def __init__(
        self,
        data: Data | None = None,
        text_column: str | int | None = None,
        label_column: str | int | None = None,
        level: str = "word",
        vocabulary_size: int | None = None,
        min_count: int = 1,
        max_length: int = 256,
        hide: float = 0.0,
        parts: int = 0,
        naive_bayes: int = 0,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data = data
        self.text_column, self.label_column = text_column, label_column
        self.level = vocabulary.checked_level(level)
        self.vocabulary_size, self.seed = vocabulary_size, whole_number("seed", seed)
        self.min_count = whole_number("min_count", min_count, 1)
        self.limit = whole_number("max_length", max_length, 1)
        self.hide = share("hide", hide)
        self.parts = whole_number("parts", parts, 0)
        if self.parts and self.level != "word":
            raise BadValue(f"parts: only words have parts, got level={level!r}. Leave one of the two out.")
        self.naive_bayes = whole_number("naive_bayes", naive_bayes, 0)
        self.counts: NaiveBayes | None = None
        self.encoding = checked_encoding(encoding)
        self.vocabulary: Vocabulary | None = None
        self.labels: list[str] = []
        self.max_length = 0
        self._encoded: dict[str, list[Labelled]] = {}
        self.whole = whole

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """The texts and labels of each split."""
        if self.data is None:
            parts = {"train": [Row(text, label, EMBEDDED, n) for n, (text, label) in enumerate(opinions(), 1)]}
        elif hub.is_hub(self.data):
            parts = self._from_hub(str(self.data))
        else:
            parts = self._from_files(paths_of(self.data))
        return divided(parts, lambda row: row.text, self.seed, self.data, self.whole)

    def _from_hub(self, data: str) -> dict[str, list[Row]]:
        splits = hub.load(data)
        given = [None if column is None else str(column) for column in (self.text_column, self.label_column)]
        text = hub.column(splits["train"], data, "text_column", given[0], TEXT)
        label = hub.column(splits["train"], data, "label_column", given[1], LABEL)
        return {
            split: [Row(str(row[text]), str(row[label]), Path(f"{data} ({split})"), n) for n, row in enumerate(part, 1)]
            for split, part in splits.items()
        }

    def _from_files(self, paths: list[Path]) -> dict[str, list[Row]]:
        files = chosen_files(paths, ENDINGS)
        if not files:
            raise BadValue(f"data: the folder {paths[0]} has no file that ends in {', '.join(ENDINGS)}.")
        found: dict[str, list[Row]] = {split: [] for split in files}
        columns: Columns | None = None
        other = self.typed(encoding="latin-1")
        # The first file for training comes first and determines the columns.
        for split, path in ((split, path) for split, some in files.items() for path in some):
            table = read_table(path, self.encoding, self.text_column, self.label_column, other)
            columns = columns or find_columns(table, self.text_column, self.label_column, self.typed)
            found[split] += labelled(table, columns)
        return found

    def _prepare(self) -> None:
        """Make labels and vocabulary from the training texts alone; without training texts, from the first split."""
        rows = self._split("train" if "train" in self.rows else next(iter(self.rows)))
        self.labels = sorted({row.label for row in rows}, key=_in_order)
        if len(self.labels) < 2:
            raise BadValue(f"{rows[0].path}: expected at least two labels, got only {excerpt(self.labels[0])}.")
        texts = [row.text for row in rows]
        self.vocabulary = vocabulary.build(self.level, texts, self.vocabulary_size, self.min_count)
        if self.naive_bayes:
            places = {label: number for number, label in enumerate(self.labels)}
            numbers = [places[row.label] for row in rows]
            words = (words_of(text) for text in texts)
            self.counts = NaiveBayes.count(words, numbers, len(self.labels), self.naive_bayes)
        every = [row.text for split in self.rows.values() for row in split]
        self.max_length = min(self.limit, max(len(ids) for ids in self.vocabulary.encode_all(every)))

    def _known(self) -> Vocabulary:
        """The vocabulary; labels and vocabulary are made from the data where no state was restored."""
        if not self.labels:
            self._prepare()
        assert self.vocabulary is not None
        return self.vocabulary

    def streams(self) -> dict[str, Tokens]:
        """The pieces of a text, with their parts if there are any."""
        count = len(self._known())
        if self.parts:
            return {INPUTS: WordsWithParts(count, PADDING, self.max_length, parts=self.parts)}
        return {INPUTS: Tokens(count, self._known().padding, self.max_length)}

    def answers(self) -> list[OneOf]:
        """As many classes as there are labels."""
        self._known()
        return [OneOf(len(self.labels), offset=self.counts is not None)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, accuracy and macro F1."""
        return (LOSS, ACCURACY, MACRO_F1)

    def _split(self, split: str) -> list[Row]:
        if checked_split(split) not in self.rows:
            raise BadValue(f"data: {self.data} has no file for {split}. It has: {', '.join(self.rows)}.")
        return self.rows[split]

    def examples(self, split: str) -> Sequence[Labelled]:
        """The texts of a split in the order of the file."""
        self._known()
        if split not in self._encoded:
            self._encoded[split] = self._encode_split(self._split(split), split == "train")
        return self._encoded[split]

    def _encode_split(self, rows: list[Row], training: bool) -> list[Labelled]:
        assert self.vocabulary is not None
        numbers = {label: number for number, label in enumerate(self.labels)}
        found = []
        for row, ids in zip(rows, self.vocabulary.encode_all([row.text for row in rows]), strict=True):
            if row.label not in numbers:
                raise wrong(
                    row.path,
                    row.line,
                    f"the label {excerpt(row.label)} does not occur in the training data. "
                    f"Known: {', '.join(excerpt(label) for label in self.labels[:12])}.",
                )
            found.append(self._labelled(row.text, ids, numbers[row.label], training))
        return found

    def _labelled(self, text: str, ids: list[int], label: int | None = None, training: bool = False) -> Labelled:
        """A text of these ids, cut to `max_length`, with the parts of its words and the scores of naive Bayes."""
        words = words_of(text) if self.parts or self.counts else []
        parts = parts_of(words[: self.max_length], self.parts) if self.parts else None
        # In training, each text is scored by the others.
        scores = self.counts.scores(words, label if training else None) if self.counts else None
        hidden = self.hide if training else 0.0
        return Labelled(self._known().cut(ids, self.max_length), label, hidden, parts, scores)

    def length(self, example: Labelled) -> int:
        """Pieces of a text."""
        return len(example.tokens)

    def collate(self, examples: Sequence[Labelled], generator: torch.Generator) -> Batch:
        """Texts padded at their ends; without targets when an example has none."""
        known = self._known()
        ids, keep = padded([example.tokens for example in examples], known.padding)
        parts = [example.parts for example in examples if example.parts is not None]
        inputs = torch.cat([ids[..., None], *([pad_sequence(parts, batch_first=True)] if parts else [])], -1)
        if any(example.hidden for example in examples):
            shares = torch.tensor([example.hidden for example in examples])
            hidden = torch.rand(ids.shape, generator=generator) < shares[:, None]
            unknown = inputs.new_zeros(inputs.shape[-1])  # it has no parts
            unknown[0] = known.unknown
            inputs = torch.where((hidden if keep is None else hidden & keep)[..., None], unknown, inputs)
        labels = [example.label for example in examples if example.label is not None]
        targets = torch.tensor(labels) if labels and len(labels) == len(examples) else None
        batch = Batch.of(inputs if parts else inputs[..., 0], keep, targets)
        scores = [example.scores for example in examples if example.scores is not None]
        return replace(batch, offset=torch.tensor(scores)) if scores else batch

    def parse(self, given: Mapping[str, str]) -> Labelled:
        """A text."""
        return self.encode(given["text"]) if set(given) == {"text"} else super().parse(given)

    def understood(self, given: Mapping[str, str], example: Labelled) -> Understood:
        """Compare the typed text with what was read: the first pieces of a long text."""
        return understood(self._known(), example.tokens, trimmed(given["text"]), "first")

    def show(self, example: Labelled, batch: Batch) -> Shown:
        """The text in pieces."""
        return texts(self.input_pieces(example))

    def encode(self, text: str) -> Labelled:
        """Encode a typed text, cut to `max_length`."""
        ids = self._known().encode(trimmed(text))
        if not ids or not trimmed(text):
            raise BadValue("--text: expected some text, got none.")
        return self._labelled(trimmed(text), ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The name of a class."""
        return self.labels[tokens[0]]

    def input_pieces(self, example: Labelled) -> list[str]:
        """The token text at each position."""
        assert self.vocabulary is not None
        return self.vocabulary.pieces(example.tokens)

    def state(self) -> dict[str, Any]:
        """Vocabulary, labels, length and the counts of naive Bayes."""
        found = {"vocabulary": self._known().state(), "labels": list(self.labels), "max_length": self.max_length}
        return found if self.counts is None else {**found, "naive_bayes": self.counts.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabulary, labels, length and the counts of naive Bayes."""
        self.vocabulary = vocabulary.restored(state["vocabulary"])
        self.level = self.vocabulary.level
        if self.parts and self.level != "word":
            raise BadValue(f"parts: only words have parts, but the pieces of this vocabulary are {self.level}.")
        self.labels = names_list("labels", state["labels"])
        self.max_length = whole_number("max_length", state["max_length"], 1)
        if self.naive_bayes:
            self.counts = NaiveBayes.restored(state.get("naive_bayes"), len(self.labels))
        self._encoded = {}


def _in_order(label: str) -> tuple[bool, int, str]:
    """Sort key: integers by value, then other labels alphabetically."""
    whole = label.removeprefix("-").isdecimal() and len(label) < 100
    return not whole, int(label) if whole else 0, label
