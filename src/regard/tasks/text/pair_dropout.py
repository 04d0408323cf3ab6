"""BPE-dropout: words cut into byte pairs in a different way each time, so that a small text is not learned by heart.

Paper: Provilkov, Emelianenko & Voita 2020, algorithm 1: byte pairs are merged in the usual order, but before each merge
every possible one is left out with a given probability. A rare word is then read through its parts, too.

For speed, a word has a pool of segmentations, drawn when it is first seen, from which each use takes one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import torch

from regard.tasks.text.vocabulary import SPECIAL, BytePairs

POOL = 16  # segmentations of a word


class PairDropout:
    """Random segmentations of texts in a byte-pair vocabulary; `share` of the possible merges are left out."""

    def __init__(self, vocabulary: BytePairs, share: float, seed: int = 0) -> None:
        model = vocabulary.state()["tokenizer"]["model"]
        self.vocabulary, self.share, self.seed = vocabulary, share, seed
        self._ids: dict[str, int] = model["vocab"]
        pairs = (one.split(" ") if isinstance(one, str) else one for one in model["merges"])
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self._numbers: dict[str, int] = {}  # of the words that were seen
        self._words: list[str] = []
        self._pools: list[list[list[int]] | None] = []

    def words(self, text: str) -> list[int]:
        """The words of a text by number, for `drawn`."""
        found = []
        for word in self.vocabulary.words(text):
            number = self._numbers.setdefault(word, len(self._words))
            if number == len(self._words):
                self._words.append(word)
                self._pools.append(None)
            found.append(number)
        return found

    def drawn(self, words: Sequence[int], generator: torch.Generator) -> list[int]:
        """The ids of a text, with a segmentation of each word that `generator` chooses."""
        chosen = torch.randint(POOL, (len(words),), generator=generator).tolist()
        return [
            number for word, index in zip(words, chosen, strict=True) for number in self._pool(word)[index]
        ]

    def _pool(self, number: int) -> list[list[int]]:
        pool = self._pools[number]
        if pool is None:
            word = self._words[number]
            drawn = random.Random(
                f"{self.seed} {word}"
            )  # not the order in which words come, so that a run can resume
            pool = self._pools[number] = [self.segmented(word, drawn) for _ in range(POOL)]
        return pool

    def segmented(self, word: str, drawn: random.Random) -> list[int]:
        """The ids of one segmentation of a word."""
        pieces = list(word)
        while True:
            possible = [
                (rank, place)
                for place, pair in enumerate(pairwise(pieces))
                if (rank := self._ranks.get(pair)) is not None and drawn.random() >= self.share
            ]
            if not possible:
                return [self._ids[piece] + len(SPECIAL) for piece in pieces]
            _, place = min(possible)
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
