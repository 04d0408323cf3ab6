"""Which word translates which, counted from pairs of sentences by expectation-maximisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.formats.gold import Pairs

ROUNDS = 10  # of expectation-maximisation
NULL = 0.08  # with a diagonal: how likely a target word translates no word (Dyer et al. 2013, section 2)
SMOOTHING = 0.01  # with a diagonal: added to each count, seen or not, so that a rare word does not take all links

Numbers = Sequence[int]
Floats = NDArray[np.float64]


class IBM1:
    """IBM model 1 with a null word: how likely a source word is written as a target word.

    Paper: Brown et al. 1993. The yardstick for alignments: it knows words, and neither their order nor their context.
    """

    smoothing = 0.0

    def __init__(self, pairs: Sequence[tuple[Numbers, Numbers]], rounds: int = ROUNDS) -> None:
        # Source word 0 is the null word, so that source ids move up by one.
        source = [np.array([0, *(word + 1 for word in sentence)]) for sentence, _ in pairs]
        target = [np.array(target_ids, dtype=np.int64) for _, target_ids in pairs]
        width = max((int(sentence.max()) + 1 for sentence in target if len(sentence)), default=1)
        cells = [
            source_ids[:, None] * width + target_ids[None]
            for source_ids, target_ids in zip(source, target, strict=True)
        ]
        priors = [
            self._prior(len(source_ids) - 1, len(target_ids))
            for source_ids, target_ids in zip(source, target, strict=True)
        ]
        flat = np.concatenate([cell.ravel() for cell in cells]) if cells else np.zeros(0, np.int64)
        self._codes, where = np.unique(flat, return_inverse=True)
        self._width, owner = width, self._codes // width
        words = len(np.unique(self._codes % width))
        likely = np.ones(len(self._codes))
        ends = np.cumsum([cell.size for cell in cells])
        for _ in range(rounds):
            expected = np.full(len(self._codes), self.smoothing)
            for cell, prior, end in zip(cells, priors, ends, strict=True):
                at = where[end - cell.size : end].reshape(cell.shape)
                if cell.size:
                    odds = likely[at] * prior
                    np.add.at(expected, at, odds / odds.sum(0, keepdims=True))
            unseen = words - np.bincount(owner)  # of each source word: how many target words it never stood beside
            likely = expected / (np.bincount(owner, expected) + self.smoothing * unseen)[owner]
        self._likely: Floats = likely

    def _prior(self, sources: int, targets: int) -> Floats:
        """How likely each target word comes from each source word, the null word first: (sources + 1, targets)."""
        return np.ones((sources + 1, targets))

    def _odds(self, source: Numbers, target: Numbers) -> Floats:
        """Likelihood times prior of each pair of words, (sources + 1, targets); zeros for pairs never seen."""
        codes = np.array([0, *(word + 1 for word in source)])[:, None] * self._width + np.array(target, np.int64)
        if not len(self._codes):
            return np.zeros(codes.shape)
        at = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        learned = (self._codes[at] == codes) & (np.array(target, np.int64) < self._width)
        odds: Floats = np.where(learned, self._likely[at], 0.0) * self._prior(len(source), len(target))
        return odds

    def shares(self, source: Numbers, target: Numbers) -> Floats:
        """How likely each target word comes from each source word, (targets, sources); what misses to 1 is null."""
        odds = self._odds(source, target)
        shares: Floats = (odds / np.maximum(odds.sum(0, keepdims=True), 1e-300))[1:].T
        return shares

    def links(self, source: Numbers, target: Numbers) -> Pairs:
        """The likeliest source word of each target word; none where the null word is likelier."""
        odds = self._odds(source, target)
        best = odds.argmax(0)
        return {(int(word) - 1, place) for place, word in enumerate(best) if word and odds[word, place] > 0}


class DiagonalModel(IBM1):
    """IBM model 2 whose prior falls with the distance from the diagonal, exp(−tension · |i/n − j/m|).

    Paper: Dyer, Chahuneau and Smith 2013 (fast_align), with a fixed tension. It knows where words usually stand, too.
    """

    smoothing = SMOOTHING

    def __init__(self, pairs: Sequence[tuple[Numbers, Numbers]], rounds: int = ROUNDS, tension: float = 4.0) -> None:
        self.tension = tension
        super().__init__(pairs, rounds)

    def _prior(self, sources: int, targets: int) -> Floats:
        places = [(np.arange(count) + 0.5) / max(1, count) for count in (sources, targets)]
        near = np.exp(-self.tension * np.abs(places[0][:, None] - places[1]))
        near *= (1 - NULL) / np.maximum(near.sum(0, keepdims=True), 1e-300)
        return np.concatenate([np.full((1, targets), NULL), near])
