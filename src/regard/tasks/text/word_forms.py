"""What is read of each word of a sentence: its id, its characters, its shape, and its character n-grams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.arguments import whole_number
from regard.tasks.padding import padded
from regard.tasks.streams import StreamSpec, TokenRows, Tokens
from regard.tasks.text import vocabulary
from regard.tasks.text.vocabulary import PADDING, SPECIAL, UNKNOWN, Characters, Vocabulary, Words
from regard.tasks.text.word_parts import WordsWithParts, parts_of
from regard.tasks.text.word_shapes import shape
from regard.tasks.text.word_vectors import WordVectors, counted_vectors

WORDS, CHARACTERS, SHAPES, VECTORS = "words", "characters", "shapes", "vectors"  # the names of the streams
COMMON = 3  # how often a shape, or a word of plain text, must occur to be known


class Form(NamedTuple):
    """The id of a word, those of its characters, filled up to the width, and that of its shape."""

    word: int
    letters: list[int]
    shape: int


class WordForms:
    """The vocabularies of words, characters and shapes.

    Args:
        lower: words are looked up in lower case.
        width: characters of a word that are read: of a longer one its beginning and its end.
        shapes: whether shapes are read.
        parts: ids of character n-grams (`regard.tasks.text.word_parts`); 0: they are not read.
        vectors: width of vectors that are counted from the texts (`regard.tasks.text.word_vectors`); 0: none.
    """

    def __init__(self, *, lower: bool, width: int, shapes: bool, parts: int, vectors: int) -> None:
        self.lower = lower
        self.width = whole_number("word_length", width, 2)
        self.parts = whole_number("parts", parts, 0)
        self.vectors = whole_number("vectors", vectors, 0)
        self.counted: Tensor | None = None  # the vectors; a restored run has them among its weights
        self.words: Vocabulary = Words([])
        self.characters: Vocabulary = Characters([])
        self.shapes: Vocabulary | None = Words([]) if shapes else None
        self._read: dict[str, Form] = {}

    def learn(self, tagged: Sequence[Sequence[str]], plain: Sequence[Sequence[str]], min_count: int) -> None:
        """Make the vocabularies, and vectors if they are asked for, from tagged sentences and plain ones."""
        read = [word for sentence in tagged for word in sentence]
        others = Counter(word for sentence in plain for word in sentence)
        counts = Counter(map(self._spelled, read))
        known = {word for word in counts if counts[word] >= min_count}
        for word, count in others.items():
            counts[self._spelled(word)] += count
        known |= {word for word in counts if counts[word] >= COMMON and word != SPECIAL[UNKNOWN]}
        self.words = Words(sorted(known, key=lambda word: (-counts[word], word)))
        self.characters = vocabulary.build("character", [*read, *others])
        if self.shapes is not None:
            self.shapes = vocabulary.build("word", map(shape, read), min_count=COMMON)
        self._read = {}
        if self.vectors:
            self.counted = self._counted([*tagged, *plain])

    def _counted(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """The vectors of all ids, the most frequent words first; special ids have zeros."""
        first = len(SPECIAL)
        numbered = [[max(-1, self.of(word).word - first) for word in sentence] for sentence in sentences]
        found = counted_vectors(numbered, len(self.words) - first, self.vectors)
        return torch.cat([found.new_zeros(first, self.vectors), found])

    def streams(self) -> dict[str, StreamSpec]:
        """The stream of words, with their parts if there are any, and what else is read of them."""
        count = len(self.words)
        words = WordsWithParts(count, PADDING, parts=self.parts) if self.parts else Tokens(count, PADDING)
        found: dict[str, StreamSpec] = {
            WORDS: words,
            CHARACTERS: TokenRows(len(self.characters), self.width, PADDING),
        }
        if self.shapes is not None:
            found[SHAPES] = Tokens(len(self.shapes), PADDING)
        if self.vectors:
            found[VECTORS] = WordVectors(count, PADDING, width=self.vectors, vectors=self.counted)
        return found

    def _spelled(self, word: str) -> str:
        """A word as the vocabulary holds it."""
        return word.lower() if self.lower else word

    def of(self, word: str) -> Form:
        """The ids of a word; kept, as most words of a text are repetitions."""
        if word not in self._read:
            letters = self.characters.encode(word)
            if len(letters) > self.width:
                letters = letters[: self.width // 2] + letters[-(self.width - self.width // 2) :]
            letters += [PADDING] * (self.width - len(letters))
            form = UNKNOWN if self.shapes is None else _single(self.shapes.encode(shape(word)))
            self._read[word] = Form(_single(self.words.encode(self._spelled(word))), letters, form)
        return self._read[word]

    def word_ids(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor | None]:
        """The ids of words (b,n), and which are real."""
        return padded([[self.of(word).word for word in words] for words in sentences], PADDING)

    def letter_ids(self, sentences: Sequence[Sequence[str]], longest: int) -> Tensor:
        """The ids of the characters of words, (b,longest,width)."""
        found = torch.full((len(sentences), longest, self.width), PADDING)
        for row, words in enumerate(sentences):
            found[row, : len(words)] = torch.tensor([self.of(word).letters for word in words])
        return found

    def shape_ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """The ids of the shapes of words, (b,n)."""
        return padded([[self.of(word).shape for word in words] for words in sentences], PADDING)[0]

    def with_parts(self, ids: Tensor, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Ids of words (b,n) with those of their parts behind them, (b,n,1 + parts); without parts, as they are."""
        if not self.parts:
            return ids
        rows = [parts_of([self._spelled(word) for word in words], self.parts) for words in sentences]
        parts = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return torch.cat([ids[..., None], parts], -1)

    def state(self) -> dict[str, Any]:
        """The vocabularies, as JSON data."""
        return {
            "lower": self.lower, "word_length": self.width, "parts": self.parts, "vectors": self.vectors,
            "vocabulary": self.words.state(), "characters": self.characters.state(),
            "shapes": None if self.shapes is None else self.shapes.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Earlier runs had no shapes, parts and vectors."""
        self.lower = bool(state["lower"])
        self.width = whole_number("word_length", state["word_length"], 2)
        self.parts = whole_number("parts", state.get("parts", 0), 0)
        self.vectors = whole_number("vectors", state.get("vectors", 0), 0)
        self.counted = None
        self.words = vocabulary.restored(state["vocabulary"])
        self.characters = vocabulary.restored(state["characters"])
        shapes = state.get("shapes")
        self.shapes = None if shapes is None else vocabulary.restored(shapes)
        self._read = {}


def _single(ids: Sequence[int]) -> int:
    """The id of a word; a word that holds a space, as some characters are to Unicode, is unknown."""
    return ids[0] if len(ids) == 1 else UNKNOWN
