"""Classification of texts, from a table with a text and a label column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from regard.errors import BadValue
from regard.support.arguments import share
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.formats import hub
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of, wrong
from regard_workbench.tasks.formats.splits import chosen_files
from regard_workbench.tasks.formats.tables import ENDINGS, LABEL, TEXT, Columns, Row, find_columns, labelled, read_table
from regard_workbench.tasks.generated.opinions import opinions
from regard_workbench.tasks.measures.macro_f1 import MACRO_F1
from regard_workbench.tasks.measures.metrics import ACCURACY
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shared_options import LEVEL, MIN_PIECE_COUNT, VOCABULARY_SIZE
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.naive_bayes import NaiveBayes
from regard_workbench.tasks.text.text_task import KnownPieces, TextPresenter, TextTask
from regard_workbench.tasks.text.vocabulary import PADDING, words_of
from regard_workbench.tasks.text.word_parts import WordsWithParts, parts_of

EMBEDDED = Path("embedded sentences")


class Labelled(NamedTuple):
    """The ids of a text and the number of its class."""

    tokens: Sequence[int]
    label: int | None = None
    hidden: float = 0.0  # the share of its pieces that a batch hides
    parts: torch.Tensor | None = None  # (n,MOST): the ids of the parts of its words
    scores: list[float] | None = None  # of naive Bayes, one for each class


@dataclass(frozen=True)
class Classes(KnownPieces):
    """What is learned of the training texts; of the longest text `max_length` pieces are read."""

    labels: list[str]
    max_length: int
    naive_bayes: NaiveBayes | None = None

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        classes = super().restored(state, task)
        level = classes.vocabulary.level
        if task.parts and level != "word":
            raise BadValue(f"parts: only words have parts, but the pieces of this vocabulary are {level}.")
        if not task.naive_bayes:
            return classes
        return replace(classes, naive_bayes=NaiveBayes.restored(state.get("naive_bayes"), len(classes.labels)))


class ClassPresenter(TextPresenter):
    """Shows texts in pieces, and answers by the names of classes."""

    def decode(self, task: Any, tokens: Sequence[int]) -> str:
        labels: list[str] = task.fitted.labels
        return labels[tokens[0]]


@task("classify")
class Classify(TextTask):
    """Classifies texts; without a file, generated sentences that praise or blame."""

    judge = Judge.by(ACCURACY, MACRO_F1)
    presenter = ClassPresenter()
    fitted = Kept(Classes)
    pretrained_vocabulary = True
    tried = ("--text", "a fine evening")
    recipe = Recipe(model="encoder", steps=1000, batch_size=32, lr=5e-4, warmup=100, reaches={"accuracy": 0.97})

    data: Data | None = option(
        "a TSV, CSV or JSON-lines file, plain or .gz, a folder with train, dev and test files, or hf:NAME", default=None
    )
    text_column: str | int | None = option(
        "name or number (from 1) of the column with the text; found by default", default=None
    )
    label_column: str | int | None = option(
        "name or number (from 1) of the column with the label; found by default", default=None
    )
    level: str = LEVEL
    vocabulary_size: int | None = VOCABULARY_SIZE
    min_count: int = MIN_PIECE_COUNT
    max_length: int = option(
        "longest text in pieces, where there are such long ones; longer ones are cut", at_least(1), default=256
    )
    hide: float = option(
        "share of a training text's pieces made unknown, others each time: small data is not learned by heart",
        share,
        default=0.0,
    )
    parts: int = option(
        "number of vectors for hashed character n-grams, added to those of words (level=word); 0 for none",
        at_least(0),
        default=0,
    )
    naive_bayes: int = option(
        "longest run of words that naive Bayes counts, whose scores are added to the logits; 0 for none",
        at_least(0),
        default=0,
    )

    def check_options(self) -> None:
        if self.parts and self.level != "word":
            raise BadValue(f"parts: only words have parts, got level={self.level!r}. Leave one of the two out.")

    def read(self) -> dict[str, list[Row]]:
        if self.data is None:
            return {"train": [Row(text, label, EMBEDDED, n) for n, (text, label) in enumerate(opinions(), 1)]}
        return self._from_hub(str(self.data)) if hub.is_hub(self.data) else self._from_files(paths_of(self.data))

    def _from_hub(self, data: str) -> dict[str, list[Row]]:
        splits = hub.load(data)
        column_names = [None if column is None else str(column) for column in (self.text_column, self.label_column)]
        text = hub.column(splits["train"], data, "text_column", column_names[0], TEXT)
        label = hub.column(splits["train"], data, "label_column", column_names[1], LABEL)
        return {
            split: [Row(str(row[text]), str(row[label]), Path(f"{data} ({split})"), n) for n, row in enumerate(rows, 1)]
            for split, rows in splits.items()
        }

    def _from_files(self, paths: list[Path]) -> dict[str, list[Row]]:
        files = chosen_files(paths, ENDINGS)
        if not files:
            raise BadValue(f"data: the folder {paths[0]} has no file that ends in {', '.join(ENDINGS)}.")
        splits: dict[str, list[Row]] = {split: [] for split in files}
        columns: Columns | None = None
        typed_encoding = self.typed(encoding="latin-1")
        # The first file for training comes first and determines the columns.
        for split, path in ((split, path) for split, some in files.items() for path in some):
            table = read_table(path, self.encoding, self.text_column, self.label_column, typed_encoding)
            columns = columns or find_columns(table, self.text_column, self.label_column, self.typed)
            splits[split] += labelled(table, columns)
        return splits

    def fit(self) -> Classes:
        rows = self.training_rows
        labels = sorted({row.label for row in rows}, key=_in_order)
        if len(labels) < 2:
            raise BadValue(f"{rows[0].path}: expected at least two labels, got only {excerpt(labels[0])}.")
        texts = [row.text for row in rows]
        text_vocabulary, counts = vocabulary.build(self.level, texts, self.vocabulary_size, self.min_count), None
        if self.naive_bayes:
            places = {label: number for number, label in enumerate(labels)}
            numbers, words = [places[row.label] for row in rows], (words_of(text) for text in texts)
            counts = NaiveBayes.count(words, numbers, len(labels), self.naive_bayes)
        return Classes(text_vocabulary, labels, self.longest(text_vocabulary, self.max_length), counts)

    def streams(self) -> dict[str, Tokens]:
        """The pieces of a text, with their parts if there are any."""
        text_vocabulary, length = self.fitted.vocabulary, self.fitted.max_length
        if self.parts:
            return {INPUTS: WordsWithParts(len(text_vocabulary), PADDING, length, parts=self.parts)}
        return {INPUTS: Tokens(len(text_vocabulary), text_vocabulary.padding, length)}

    def answers(self) -> list[OneOf]:
        """As many classes as there are labels."""
        return [OneOf(len(self.fitted.labels), offset=self.fitted.naive_bayes is not None)]

    def example(self, row: Row | str, ids: list[int], *, training: bool) -> Labelled:
        """A text, cut to the longest, with the parts of its words and the scores of naive Bayes."""
        fitted, label = self.fitted, None
        if isinstance(row, Row):
            if row.label not in fitted.labels:
                learned_labels = ", ".join(excerpt(label) for label in fitted.labels[:12])
                text = f"the label {excerpt(row.label)} does not occur in the training data. Known: {learned_labels}."
                raise wrong(row.path, row.line, text)
            label = fitted.labels.index(row.label)
        counts = fitted.naive_bayes
        words = words_of(row if isinstance(row, str) else row.text) if self.parts or counts else []
        part_ids = parts_of(words[: fitted.max_length], self.parts) if self.parts else None
        # In training, each text is scored by the others.
        scores = counts.scores(words, label if training else None) if counts else None
        hidden = self.hide if training else 0.0
        return Labelled(fitted.vocabulary.cut(ids, fitted.max_length), label, hidden, part_ids, scores)

    def collate(self, examples: Sequence[Labelled], generator: torch.Generator) -> Batch:
        """Texts padded at their ends; without targets when an example has none."""
        text_vocabulary = self.fitted.vocabulary
        ids, keep = padded([example.tokens for example in examples], text_vocabulary.padding)
        part_ids = [example.parts for example in examples if example.parts is not None]
        inputs = torch.cat([ids[..., None], *([pad_sequence(part_ids, batch_first=True)] if part_ids else [])], -1)
        if any(example.hidden for example in examples):
            shares = torch.tensor([example.hidden for example in examples])
            hidden = torch.rand(ids.shape, generator=generator) < shares[:, None]
            unknown = inputs.new_zeros(inputs.shape[-1])  # it has no parts
            unknown[0] = text_vocabulary.unknown
            inputs = torch.where((hidden if keep is None else hidden & keep)[..., None], unknown, inputs)
        labels = [example.label for example in examples if example.label is not None]
        targets = torch.tensor(labels) if labels and len(labels) == len(examples) else None
        batch = Batch.of(inputs if part_ids else inputs[..., 0], keep, targets)
        scores = [example.scores for example in examples if example.scores is not None]
        return replace(batch, offset=torch.tensor(scores)) if scores else batch


def _in_order(label: str) -> tuple[bool, int, str]:
    """Sort key: integers by value, then other labels alphabetically."""
    is_integer = label.removeprefix("-").isdecimal() and len(label) < 100
    return not is_integer, int(label) if is_integer else 0, label
