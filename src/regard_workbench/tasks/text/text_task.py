"""The base of tasks that read one text in pieces, and how texts are read from people and shown to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import BadValue
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.presenter import TypedText
from regard_workbench.tasks.parts.rows_from_files import RowsFromFiles
from regard_workbench.tasks.parts.shown import Shown, Understood, texts, understood
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class KnownPieces(Fitted):
    """The vocabulary of the training texts."""

    vocabulary: Vocabulary


class TextPresenter(TypedText["TextTask"]):
    """Shows texts in pieces of the vocabulary."""

    def understood(self, task: TextTask, given: Mapping[str, str], example: Any) -> Understood:
        """Compare the typed text with what was read: the first pieces of a long text."""
        return understood(task.fitted.vocabulary, example.tokens, trimmed(given["text"]), "first")

    def show(self, task: TextTask, example: Any, batch: Batch) -> Shown:
        """The text in pieces."""
        return texts(task.input_pieces(example))


class TextTask(RowsFromFiles):
    """A subclass defines `read`, `fit`, and `example`: what a row is with the ids of its text."""

    fitted = Kept(KnownPieces)
    presenter = TextPresenter()

    def example(self, row: Any, ids: list[int], *, training: bool) -> Any:
        """The example of a row whose text has these ids, with a field `tokens`; a row may be a typed text alone."""
        raise NotImplementedError(f"{type(self).__name__} does not define example")

    def encoded(self, rows: Sequence[Any], *, training: bool) -> list[Any]:
        """The texts of rows as ids of the vocabulary."""
        ids = self.fitted.vocabulary.encode_all([row.text for row in rows])
        return [self.example(row, row_ids, training=training) for row, row_ids in zip(rows, ids, strict=True)]

    def encode(self, text: str) -> Any:
        """The example of a typed text."""
        text = trimmed(text)
        ids = self.fitted.vocabulary.encode(text)
        if not text or not ids:  # of a checkpoint's vocabulary even an empty text has ids
            raise BadValue("--text: expected some text, got none.")
        return self.example(text, ids, training=False)

    def input_pieces(self, example: Any) -> list[str]:
        """The token text at each position."""
        return self.fitted.vocabulary.pieces(example.tokens)

    def longest(self, known: Vocabulary, most: int) -> int:
        """The pieces of the longest text of any split, `most` at most."""
        every = [row.text for rows in self.rows.values() for row in rows]
        return min(most, max(len(ids) for ids in known.encode_all(every)))

    def length(self, example: Any) -> int:
        """Pieces of a text."""
        return len(example.tokens)
