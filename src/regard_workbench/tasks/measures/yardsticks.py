"""Yardsticks without training by gradients: likeness of texts by TF-IDF, as a reply is chosen or found with it.

>>> from regard_workbench.tasks.measures.yardsticks import TfIdf
>>> likeness = TfIdf(["a thai place", "a greek place"])
>>> likeness.between("thai food", "the thai place") > likeness.between("thai food", "a greek place")
True
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from regard_workbench.tasks.text.split_words import split_words

Vector = dict[str, float]


class TfIdf:
    """Texts as vectors of length 1: how often a word comes times ln((1 + texts) / (1 + texts with it)) + 1."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = Counter(word for text in texts for word in set(split_words(text)))
        self.weights = {word: math.log((1 + len(texts)) / (1 + count)) + 1 for word, count in counts.items()}

    def vector(self, text: str) -> Vector:
        """The vector of a text; words that no text had before are left out."""
        counts = Counter(word for word in split_words(text) if word in self.weights)
        vector = {word: count * self.weights[word] for word, count in counts.items()}
        length = math.sqrt(sum(value * value for value in vector.values())) or 1.0
        return {word: value / length for word, value in vector.items()}

    def between(self, one: str, other: str) -> float:
        """The cosine of two texts."""
        return cosine(self.vector(one), self.vector(other))


def cosine(one: Vector, other: Vector) -> float:
    """The product of two vectors of length 1."""
    return math.fsum(value * other.get(word, 0.0) for word, value in one.items())


class Nearest:
    """The text that is most like another among some, found through the words they share."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.likeness = TfIdf(texts)
        self.places: dict[str, list[tuple[int, float]]] = {}
        for number, text in enumerate(texts):
            for word, value in self.likeness.vector(text).items():
                self.places.setdefault(word, []).append((number, value))

    def to(self, text: str) -> int:
        """The number of the nearest text; of equally near ones the first, and the first where none shares a word."""
        totals: dict[int, float] = {}
        for word, value in self.likeness.vector(text).items():
            for number, weight in self.places.get(word, ()):
                totals[number] = totals.get(number, 0.0) + value * weight
        return min(totals, key=lambda number: (-totals[number], number), default=0)


def most_frequent(texts: Iterable[str]) -> str:
    """The text that comes most often; of equally frequent ones the first by alphabet."""
    counts = Counter(texts)
    return min(counts, key=lambda text: (-counts[text], text))
