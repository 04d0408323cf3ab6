"""Parts of words: character n-grams, hashed to a fixed number of ids, so that a word never seen before has a vector.

The parts of a word are the n-grams of `<word>`, the brackets marking its ends, so that `<un` is the beginning of a
word. An n-gram's id is a checksum (CRC-32 of its UTF-8 bytes) modulo the number of ids: the same in every process and
on every machine, with no list to keep. Id 0 stands for no part.

    >>> from regard_workbench.tasks.text.word_parts import ngrams, part_ids
    >>> ngrams("so", 3, 6)
    ['<so', 'so>', '<so>']
    >>> part_ids("so", count=1000)
    (227, 593, 192)

Paper: Bojanowski et al. 2017, section 3.2.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from regard_workbench.tasks.parts.streams import Tokens

SHORTEST, LONGEST = 3, 6
MOST = 20  # parts of a word that are used, the short ones first: the stream has a fixed width


@dataclass(frozen=True)
class WordsWithParts(Tokens):
    """Positions that hold the id of a word and `MOST` ids of parts: (b,n,1 + MOST); a part is 0 where there is none."""

    parts: int = 1  # parts have ids from 0 to parts
    embedder: ClassVar[str] = "regard_workbench.models.parts.word_parts"


def ngrams(word: str, shortest: int = SHORTEST, longest: int = LONGEST) -> list[str]:
    """The character n-grams of `<word>`, the short ones first, each length from left to right."""
    text = f"<{word}>"
    return [
        text[start : start + size] for size in range(shortest, longest + 1) for start in range(len(text) - size + 1)
    ]


@lru_cache(maxsize=1 << 17)  # most words of a text are repetitions
def part_ids(word: str, count: int) -> tuple[int, ...]:
    """The ids, from 1 to `count`, of the first `MOST` parts of a word."""
    return tuple(1 + zlib.crc32(ngram.encode()) % count for ngram in ngrams(word)[:MOST])


def parts_of(words: Iterable[str], count: int) -> Tensor:
    """The ids of the parts of each word, (n,MOST), filled up with zeros."""
    rows = [[*ids, *[0] * (MOST - len(ids))] for ids in (part_ids(word, count) for word in words)]
    return torch.tensor(rows, dtype=torch.long).view(-1, MOST)
