"""Naive Bayes: the class of a text by how often its words, and what they form, occur in the texts of each class.

The features of a text are its words, runs of up to `longest` words, and the first 4, 5 and 6 letters of words, which
join the forms of a word (touch, touching, touched). All but whole words must be in two texts or more to be counted.
Each counts once in a text.

    score_c(x) = ln (texts_c + 1) + Σ_{f ∈ x} ln (count_{c,f} + 1) / (Σ_g count_{c,g} + features)

Features that no other text has are left out of the sum. A text that was itself counted is scored by the other texts
(`own`), as if it had been left out: otherwise it would vote for its own class, and whatever learns from these scores
would trust them too much.

    >>> from regard_workbench.tasks.text.naive_bayes import NaiveBayes
    >>> counts = NaiveBayes(1, texts=[1, 2], counts={"fab": [0, 2], "fun": [0, 1], "bad": [1, 0]})
    >>> [round(score, 3) for score in counts.scores(["fab"])]  # ln 2·1/4 and ln 3·3/6, less their mean
    [-0.549, 0.549]

Paper: Wang & Manning 2012 (words and word pairs, each counted once; without beginnings of words).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number

FEWEST = 2  # texts that contain a feature, other than a word, for it to be counted
LETTERS = (4, 5, 6)  # in the beginning of a word


def features(words: Sequence[str], longest: int) -> set[str]:
    """The words of a text, its runs of 2 to `longest` words, and beginnings of words, which end with a space."""
    grams = set(words)
    for size in range(2, longest + 1):
        grams.update(" ".join(words[start : start + size]) for start in range(len(words) - size + 1))
    for size in LETTERS:
        grams.update(word[:size] + " " for word in words if len(word) >= size)
    return grams


class NaiveBayes:
    """The number of texts of each class, and of those that contain each feature."""

    def __init__(
        self, longest: int, texts: Sequence[int], counts: Mapping[str, Sequence[int]], scale: float = 1.0
    ) -> None:
        self.longest, self.texts, self.counts, self.scale = longest, list(texts), dict(counts), scale
        totals = [sum(column) for column in zip(*self.counts.values(), strict=True)] or [0] * len(self.texts)
        self.totals = [total + len(self.counts) for total in totals]

    @classmethod
    def count(cls, texts: Iterable[Sequence[str]], labels: Sequence[int], classes: int, longest: int = 2) -> NaiveBayes:
        """Count texts, given as words, of these classes; scores are scaled to a root mean square of 1 over them."""
        feature_sets = [features(words, longest) for words in texts]
        counts: dict[str, list[int]] = {}
        for text_features, label in zip(feature_sets, labels, strict=True):
            for feature in text_features:
                counts.setdefault(feature, [0] * classes)[label] += 1
        # Sorted, since the order of a set differs between processes.
        kept = {f: counts[f] for f in sorted(counts) if " " not in f or sum(counts[f]) >= FEWEST}
        model = cls(longest, [labels.count(number) for number in range(classes)], kept)
        squares = [
            score * score
            for text_features, label in zip(feature_sets, labels, strict=True)
            for score in model._scores(text_features, label)
        ]
        model.scale = math.sqrt(math.fsum(squares) / max(1, len(squares))) or 1.0
        return model

    def scores(self, words: Sequence[str], own: int | None = None) -> list[float]:
        """A score for each class, with a sum of 0. `own`: the class of this text, if it was counted."""
        return [score / self.scale for score in self._scores(features(words, self.longest), own)]

    def _scores(self, found: Iterable[str], own: int | None) -> list[float]:
        rows = [self.counts[feature] for feature in found if feature in self.counts]
        fewest = 1 if own is None else 2  # a text's own feature must be in another one, too
        informative = [row for row in rows if sum(row) >= fewest]
        scores: list[float] = []
        for number, (texts, total) in enumerate(zip(self.texts, self.totals, strict=True)):
            less = int(number == own)
            below = math.log(max(1, total - less * len(rows)))
            terms = [math.log(max(0, row[number] - less) + 1) - below for row in informative]
            scores.append(math.log(max(0, texts - less) + 1) + math.fsum(terms))
        mean = math.fsum(scores) / len(scores)
        return [score - mean for score in scores]

    def state(self) -> dict[str, Any]:
        """The counts as plain data."""
        return {"longest": self.longest, "texts": self.texts, "counts": self.counts, "scale": self.scale}

    @classmethod
    def restored(cls, state: object, classes: int) -> NaiveBayes:
        """The counts that `state` describes; `BadValue` if it describes none for so many classes."""
        wanted = BadValue(f"naive_bayes: expected counts of {classes} classes, as `state` makes them.")
        if not isinstance(state, Mapping) or not isinstance(state.get("counts"), Mapping):
            raise wanted
        rows = [state.get("texts"), *state["counts"].values()]
        if not all(isinstance(row, list) and len(row) == classes for row in rows):
            raise wanted
        if not all(type(count) is int and count >= 0 for row in rows for count in row):
            raise wanted
        longest = whole_number("longest", state.get("longest"), 1)
        return cls(longest, rows[0], state["counts"], finite_number("scale", state.get("scale"), 0))
