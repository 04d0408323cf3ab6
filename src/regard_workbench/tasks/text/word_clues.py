"""Clues to what a word is in its sentence, as ids: the features that a linear model would be given.

For each of the five words around a position: the word, its shape, how often plain text writes it with a capital letter
inside a sentence, and its groups of similar words; of the word itself its first and last letters, too.

    >>> from regard_workbench.tasks.text.word_clues import WordClues
    >>> clues = WordClues(1, lambda word: (3, (7,)))
    >>> clues.learn([("Anna", "sleeps")])
    >>> [len(row) for row in clues.ids(("Anna", "sleeps"))], [len(row) for row in clues.ids(("Otto",))]
    ([22, 24], [9])
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from regard_workbench.tasks.parts.streams import TokenRows
from regard_workbench.tasks.text.word_shapes import shape

AROUND = (-2, -1, 0, 1, 2)
ENDS = (1, 2, 3, 4)  # letters at the beginning and at the end of a word
SIZES = (32, 128, 512)  # numbers of groups of similar words
BEFORE_A_CAPITAL = frozenset(".!?=:\"'“”‘’(")  # a capital letter after one of these says nothing of the word
FEWEST = 2  # how often a word must stand inside a sentence to say how it is written there
SHARES = (0.1, 0.5, 0.9)  # of capital letters: between these are the classes 1 to 4; 0: unknown
KEPT = 20_000  # sentences whose ids are kept

# The class of capitals of a word, and its groups.
About = Callable[[str], tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class CluesSpec(TokenRows):
    """Positions that hold the ids of their clues."""

    words: ClassVar[str] = "clues of words"


class WordClues:
    """The clues of each word of a sentence as ids from 1 on, of those that occur in training.

    A hash of a clue is kept, not its text. Clues that training never saw have no id: with ids that clues share, an
    unknown word would get the weights of others, which costs ten points of F1 with 260,000 ids.

    Args:
        least: how often a clue must occur in training to be known; 0: there are no clues.
        about: class of capitals and groups of a word.
    """

    def __init__(self, least: int, about: About) -> None:
        self.least, self.about = least, about
        self.known: dict[int, int] = {}
        self._kept: dict[tuple[str, ...], list[list[int]]] = {}

    def learn(self, sentences: Iterable[Sequence[str]]) -> None:
        """Take the clues of the training sentences."""
        counts = Counter(
            zlib.crc32(clue.encode()) for words in sentences for row in self._of(tuple(words)) for clue in row
        )
        self.restore([hash for hash, count in counts.items() if count >= self.least])

    def restore(self, hashes: Sequence[int]) -> None:
        """Take the hashes of the clues, in the order of their ids."""
        self.known = {hash: number for number, hash in enumerate(hashes, 1)}
        self._kept = {}

    def ids(self, words: tuple[str, ...]) -> list[list[int]]:
        """The ids for each word."""
        if words not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            rows = [[self.known.get(zlib.crc32(clue.encode()), 0) for clue in row] for row in self._of(words)]
            self._kept[words] = [[number for number in row if number] for row in rows]
        return self._kept[words]

    def _of(self, words: tuple[str, ...]) -> list[list[str]]:
        lower, shapes = [word.lower() for word in words], [shape(word) for word in words]
        descriptions = [self.about(word) for word in words]
        shouted = sum(word[:1].isupper() for word in words) > 0.6 * len(words)
        rows = []
        for at, word in enumerate(lower):
            row = ["any"]
            for distance in AROUND:
                neighbour = at + distance
                if not 0 <= neighbour < len(words):
                    row.append(f"edge {distance}")
                    continue
                capitals, groups = descriptions[neighbour]
                row += [f"word {distance} {lower[neighbour]}", f"shape {distance} {shapes[neighbour]}"]
                row.append(f"capitals {distance} {capitals}")
                row += [f"group {number} {distance} {group}" for number, group in enumerate(groups)]
            for count in ENDS:
                row += [f"begins {word[:count]}", f"ends {word[-count:]}"]
            row += [
                f"shape and capitals {shapes[at]} {descriptions[at][0]}",
                f"shape and sentence {shapes[at]} {shouted}",
            ]
            if at:
                row += [f"pair {lower[at - 1]} {word}", f"shapes {shapes[at - 1]} {shapes[at]}"]
            rows.append(row)
        return rows


def most_clues(groups: int) -> int:
    """The largest number of clues of one word, where words have so many groups."""
    return 1 + len(AROUND) * (3 + groups) + 2 * len(ENDS) + 4


def capital_classes(sentences: Iterable[Sequence[str]]) -> dict[str, int]:
    """The class, 1 to 4, of each lower-case word by how often it has a capital letter inside a sentence."""
    counts_of: dict[str, list[int]] = {}
    for sentence in sentences:
        for before, word in itertools.pairwise(sentence):
            if before not in BEFORE_A_CAPITAL:
                counts = counts_of.setdefault(word.lower(), [0, 0])
                counts[0] += word[:1].isupper()
                counts[1] += 1
    return {
        word: 1 + sum(capital / count >= share for share in SHARES)
        for word, (capital, count) in counts_of.items()
        if count >= FEWEST
    }
