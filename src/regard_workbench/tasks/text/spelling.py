"""Words with their spelling: ids of character trigrams beside the id of a word.

A word that training never showed, or that is misspelt, still shares trigrams with the words it resembles
(Bojanowski et al. 2017, where n-grams are hashed in the same way).

    >>> from regard_workbench.tasks.text.spelling import trigrams
    >>> trigrams("thai", 1000) == trigrams("thai", 1000), len(trigrams("thai", 1000))
    (True, 4)
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.vocabulary import BLANK, PADDING, SPECIAL, Vocabulary

GRAMS = 2048  # ids of trigrams, by a hash; 0 is none
MOST = 12  # trigrams of a word: longer words keep the first
HIDDEN = 0.15  # of the words; of these 90 % become blank, 10 % stay
USER, SYSTEM, ASKS, CONFIRMS, SPEAKERS = range(5)  # who says a word; acts of the system are words, too
SPEAKER, FIRST_GRAM = 1, 2  # the columns of a position: word, speaker, trigrams


def trigrams(word: str, grams: int = GRAMS) -> list[int]:
    """The ids of the trigrams of a word between brackets, from 1 to grams − 1."""
    framed = f"<{word}>"
    fragments = [framed[at : at + 3] for at in range(len(framed) - 2)]
    return [1 + zlib.crc32(fragment.encode("utf-8", "surrogatepass")) % (grams - 1) for fragment in fragments[:MOST]]


def spelled(vocabulary: Vocabulary, text: str, speaker: int) -> list[tuple[int, ...]]:
    """The words of a text, each as (word, speaker, trigrams …)."""
    words = []
    for word, number in zip(split_words(text), vocabulary.encode(text), strict=True):
        grams = trigrams(word)
        words.append((number, speaker, *grams, *[PADDING] * (MOST - len(grams))))
    return words


def mark(number: int, speaker: int) -> tuple[int, ...]:
    """A position that holds a special id and no spelling."""
    return (number, speaker, *[PADDING] * MOST)


def padded_words(texts: Sequence[Sequence[tuple[int, ...]]]) -> tuple[Tensor, Tensor | None]:
    """Positions (b,n,columns) and a padding mask (b,n), True = real; None if nothing is padded."""
    longest = max(map(len, texts), default=0)
    data = torch.zeros(len(texts), longest, FIRST_GRAM + MOST, dtype=torch.long)
    keep = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, words in enumerate(texts):
        if words:
            data[row, : len(words)] = torch.tensor(words)
            keep[row, : len(words)] = True
    return data, None if bool(keep.all()) else keep


def padded_texts(examples: Sequence[Sequence[Sequence[tuple[int, ...]]]]) -> tuple[Tensor, Tensor]:
    """Several texts for each example: positions (b,texts,n,columns) and a padding mask (b,texts,n), True = real."""
    most = max(map(len, examples), default=0)
    texts = [text for example in examples for text in (*example, *[()] * (most - len(example)))]
    data, keep = padded_words(texts)
    if keep is None:
        keep = torch.ones(data.shape[:2], dtype=torch.bool)
    return data.unflatten(0, (len(examples), most)), keep.unflatten(0, (len(examples), most))


def hide(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions with some words made blank, and which of them a model is to guess, (b,n); at least one in each text.

    A blank has no spelling. Marks (special ids) are never hidden.
    """
    words = data[..., 0] >= len(SPECIAL)
    drawn = torch.rand(words.shape, generator=generator).masked_fill(~words, 2.0)
    most = (HIDDEN * words.sum(1)).round().clamp(min=1).long()
    targets = (drawn.argsort(1).argsort(1) < most[:, None]) & words
    gone = targets & (torch.rand(words.shape, generator=generator) < 0.9)
    shown = data.clone()
    shown[..., 0].masked_fill_(gone, BLANK)
    shown[..., FIRST_GRAM:].masked_fill_(gone[..., None], PADDING)
    return shown, targets
