"""What is read of each word of a sentence: its id, its characters, its shape, and its character n-grams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.streams import StreamSpec, TokenRows, Tokens
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.vocabulary import PADDING, SPECIAL, UNKNOWN, Characters, Vocabulary, Words
from regard_workbench.tasks.text.word_clues import SIZES, CluesSpec, WordClues, capital_classes, most_clues
from regard_workbench.tasks.text.word_clusters import clusters
from regard_workbench.tasks.text.word_parts import WordsWithParts, parts_of
from regard_workbench.tasks.text.word_shapes import shape
from regard_workbench.tasks.text.word_vectors import WordVectors, counted_vectors

# The names of the streams.
WORDS, CHARACTERS, SHAPES, VECTORS, CLUES = "words", "characters", "shapes", "vectors", "clues"
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
        parts: ids of character n-grams (`word_parts`); 0: they are not read.
        vectors: width of vectors that are counted from the texts (`word_vectors`); 0: none.
        clues: how often a clue to what a word is must occur in training to be known (`word_clues`);
            0: there are none.
    """

    def __init__(self, *, lower: bool, width: int, shapes: bool, parts: int, vectors: int, clues: int = 0) -> None:
        self.lower = lower
        self.width = whole_number("word_length", width, 2)
        self.parts = whole_number("parts", parts, 0)
        self.vectors = whole_number("vectors", vectors, 0)
        self.clues = WordClues(whole_number("clues", clues, 0), self._about)
        self.capitals: list[int] = []  # for each id of a word, the class of its capitals
        self.groups: list[list[int]] = []  # for each size, the group of each id of a word
        self.counted: Tensor | None = None  # the vectors; a restored run has them among its weights
        self.words: Vocabulary = Words([])
        self.characters: Vocabulary = Characters([])
        self.shapes: Vocabulary | None = Words([]) if shapes else None
        self._read: dict[str, Form] = {}

    def learn(self, tagged: Sequence[Sequence[str]], plain: Sequence[Sequence[str]], min_count: int) -> None:
        """Make the vocabularies, and vectors if they are asked for, from tagged sentences and plain ones."""
        read = [word for sentence in tagged for word in sentence]
        plain_counts = Counter(word for sentence in plain for word in sentence)
        counts = Counter(map(self._spelled, read))
        frequent = {word for word in counts if counts[word] >= min_count}
        for word, count in plain_counts.items():
            counts[self._spelled(word)] += count
        frequent |= {word for word in counts if counts[word] >= COMMON and word != SPECIAL[UNKNOWN]}
        self.words = Words(sorted(frequent, key=lambda word: (-counts[word], word)))
        self.characters = vocabulary.build("character", [*read, *plain_counts])
        if self.shapes is not None:
            self.shapes = vocabulary.build("word", map(shape, read), min_count=COMMON)
        self._read = {}
        if self.vectors:
            often = sum(counts[word] >= COMMON for word in frequent)
            self.counted = self._counted([*tagged, *plain], often)
        if self.clues.least:
            classes = capital_classes(plain)
            named = self.words.pieces(range(len(SPECIAL), len(self.words)))
            self.capitals = [0] * len(SPECIAL) + [classes.get(word.lower(), 0) for word in named]
            vectors = self.counted
            self.groups = [] if vectors is None else [clusters(vectors, size).tolist() for size in SIZES]
            self.clues.learn(tagged)

    def _about(self, word: str) -> tuple[int, list[int]]:
        """The class of a word's capitals, and its groups."""
        number = self.of(word).word
        return self.capitals[number], [group[number] for group in self.groups]

    def _counted(self, sentences: Sequence[Sequence[str]], often: int) -> Tensor:
        """The vectors of all ids, the most frequent words first; special ids have zeros.

        Counted are only the first `often` words. The vector of a rarer one would tell in which training sentence it
        stands, and its chance neighbours, which look telling, would fill the columns.
        """
        first = len(SPECIAL)
        numbers = ([self.of(word).word - first for word in sentence] for sentence in sentences)
        numbered = [
            [number if 0 <= number < often else -1 for number in sentence_numbers] for sentence_numbers in numbers
        ]
        vectors = torch.zeros(len(self.words), self.vectors)
        vectors[first : first + often] = counted_vectors(numbered, often, self.vectors)
        return vectors

    def streams(self) -> dict[str, StreamSpec]:
        """The stream of words, with their parts if there are any, and what else is read of them."""
        count = len(self.words)
        words = WordsWithParts(count, PADDING, parts=self.parts) if self.parts else Tokens(count, PADDING)
        specs: dict[str, StreamSpec] = {WORDS: words, CHARACTERS: TokenRows(len(self.characters), self.width, PADDING)}
        if self.shapes is not None:
            specs[SHAPES] = Tokens(len(self.shapes), PADDING)
        if self.vectors:
            specs[VECTORS] = WordVectors(count, PADDING, width=self.vectors, vectors=self.counted)
        if self.clues.least:
            specs[CLUES] = CluesSpec(1 + len(self.clues.known), most_clues(len(self.groups)), PADDING)
        return specs

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
        letters = torch.full((len(sentences), longest, self.width), PADDING)
        for row, words in enumerate(sentences):
            letters[row, : len(words)] = torch.tensor([self.of(word).letters for word in words])
        return letters

    def shape_ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """The ids of the shapes of words, (b,n)."""
        return padded([[self.of(word).shape for word in words] for words in sentences], PADDING)[0]

    def clue_ids(self, sentences: Sequence[Sequence[str]], longest: int) -> Tensor:
        """The ids of the clues of words, (b,longest,width)."""
        width = most_clues(len(self.groups))
        padded = torch.full((len(sentences), longest, width), PADDING)
        for row, words in enumerate(sentences):
            ids = [word_clues + [PADDING] * (width - len(word_clues)) for word_clues in self.clues.ids(tuple(words))]
            padded[row, : len(words)] = torch.tensor(ids)
        return padded

    def with_parts(self, ids: Tensor, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Ids of words (b,n) with those of their parts behind them, (b,n,1 + parts); without parts, as they are."""
        if not self.parts:
            return ids
        rows = [parts_of([self._spelled(word) for word in words], self.parts) for words in sentences]
        part_numbers = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return torch.cat([ids[..., None], part_numbers], -1)

    def state(self) -> dict[str, Any]:
        """The vocabularies, as JSON data."""
        return {
            "lower": self.lower,
            "word_length": self.width,
            "parts": self.parts,
            "vectors": self.vectors,
            "vocabulary": self.words.state(),
            "characters": self.characters.state(),
            "shapes": None if self.shapes is None else self.shapes.state(),
            "clues": self.clues.least,
            "known_clues": list(self.clues.known),
            "capitals": self.capitals,
            "groups": self.groups,
            "max_length": None,  # any number of words
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """What `state` was made of. Earlier runs had no shapes, parts, vectors and clues."""
        shapes = state.get("shapes")
        sizes = {name: state.get(name, 0) for name in ("parts", "vectors", "clues")}
        forms = cls(lower=bool(state["lower"]), width=state["word_length"], shapes=shapes is not None, **sizes)
        forms.words = vocabulary.restored(state["vocabulary"])
        forms.characters = vocabulary.restored(state["characters"])
        forms.shapes = None if shapes is None else vocabulary.restored(shapes)
        forms.clues.restore(_numbers("known_clues", state.get("known_clues", [])))
        forms.capitals = _numbers("capitals", state.get("capitals", []))
        forms.groups = [_numbers("groups", group) for group in state.get("groups", [])]
        for table in [forms.capitals, *forms.groups] if forms.clues.least else []:
            if len(table) != len(forms.words):
                raise BadValue(
                    f"capitals, groups: expected {len(forms.words)} numbers, one for each word, got {len(table)}."
                )
        return forms


def _numbers(name: str, numbers: Any) -> list[int]:
    """A list of whole numbers, as `state` makes it."""
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise BadValue(f"{name}: expected whole numbers, as `state` makes them.")
    return numbers


def _single(ids: Sequence[int]) -> int:
    """The id of a word; a word that holds a space, as some characters are to Unicode, is unknown."""
    return ids[0] if len(ids) == 1 else UNKNOWN
