"""BPE-dropout: words cut into byte pairs in a different way each time, so that a small text is not learned by heart.

Paper: Provilkov, Emelianenko & Voita 2020, algorithm 1: byte pairs are merged in the usual order, but before each merge
every possible one is left out with a given probability. A rare word is then read through its parts, too.

For speed, a word has a pool of segmentations, drawn when it is first seen, from which each use takes one. The pools of
all words lie in one array, so that the pieces of a whole batch are looked up at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard_workbench.tasks.text.vocabulary import SPECIAL, BytePairs

POOL = 16  # segmentations of a word


class PairDropout:
    """Random segmentations of texts in a byte-pair vocabulary; `share` of the possible merges are left out."""

    def __init__(self, vocabulary: BytePairs, share: float, seed: int = 0) -> None:
        model = vocabulary.state()["tokenizer"]["model"]
        self.vocabulary, self.share, self.seed = vocabulary, share, seed
        self._ids: dict[str, int] = model["vocab"]
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self._numbers: dict[str, int] = {}  # of the words that were seen
        self._words: list[str] = []
        self._pieces = np.zeros(0, dtype=np.int64)  # of all segmentations, one after the other, with spare room
        self._filled = 0
        self._begins = np.zeros((0, POOL), dtype=np.int64)  # of each segmentation of each word; -1: not drawn yet
        self._sizes = np.zeros((0, POOL), dtype=np.int64)

    def words(self, text: str) -> list[int]:
        """The words of a text by number, for `drawn`."""
        numbers = []
        for word in self.vocabulary.words(text):
            number = self._numbers.setdefault(word, len(self._words))
            if number == len(self._words):
                self._words.append(word)
            numbers.append(number)
        return numbers

    def drawn(self, words: Sequence[int], generator: torch.Generator) -> list[int]:
        """The ids of a text, with a segmentation of each word that `generator` chooses."""
        chosen = torch.randint(POOL, (len(words),), generator=generator)
        ids: list[int] = self.pieces(np.asarray(words, dtype=np.int64), chosen.numpy())[0].tolist()
        return ids

    def pieces(self, words: NDArray[Any], chosen: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of words, one after the other, each by the chosen one of its segmentations; how many each has."""
        if len(self._begins) < len(self._words):
            self._begins = _longer(self._begins, len(self._words), -1)
            self._sizes = _longer(self._sizes, len(self._words), 0)
        for number in np.unique(words[self._begins[words, 0] < 0]).tolist():
            self._draw(number)
        sizes = self._sizes[words, chosen]
        ends = sizes.cumsum()
        # Piece i of a word that begins at place p of the result lies at begin + (i - p) in the array.
        places = np.arange(ends[-1] if len(ends) else 0)
        return self._pieces[places + np.repeat(self._begins[words, chosen] - ends + sizes, sizes)], sizes

    def _draw(self, number: int) -> None:
        """Fill the pool of a word."""
        word = self._words[number]
        # Not the order in which words come, so that a run can resume.
        drawn = random.Random(f"{self.seed} {word}")
        for index in range(POOL):
            ids = self.segmented(word, drawn)
            begin, end = self._filled, self._filled + len(ids)
            if end > len(self._pieces):
                self._pieces = _longer(self._pieces, 2 * end, 0)
            self._pieces[begin:end] = ids
            self._begins[number, index], self._sizes[number, index], self._filled = begin, len(ids), end

    def pool(self, number: int) -> list[list[int]]:
        """The segmentations of a word."""
        words, chosen = np.full(POOL, number), np.arange(POOL)
        ids, sizes = self.pieces(words, chosen)
        return [piece_ids.tolist() for piece_ids in np.split(ids, sizes.cumsum()[:-1])]

    def segmented(self, word: str, drawn: random.Random) -> list[int]:
        """The ids of one segmentation of a word."""
        pieces, share, draw, rank_of = list(word), self.share, drawn.random, self._ranks.get
        ranks = [rank_of(pair) for pair in pairwise(pieces)]
        while True:
            best, at = None, -1
            for place, rank in enumerate(ranks):
                if rank is not None and draw() >= share and (best is None or rank < best):
                    best, at = rank, place
            if best is None:
                return [self._ids[piece] + len(SPECIAL) for piece in pieces]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
            around = pieces[max(0, at - 1) : at + 2]  # only the pairs with the new piece are others now
            ranks[max(0, at - 1) : at + 2] = [rank_of(pair) for pair in pairwise(around)]


def _longer(array: NDArray[Any], size: int, fill: int) -> NDArray[Any]:
    """The same array with more rows."""
    padding = np.full((size - len(array), *array.shape[1:]), fill, dtype=array.dtype)
    return np.concatenate([array, padding])
