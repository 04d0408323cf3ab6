"""Gold word alignments, and the quality of an alignment: error rate, precision, recall.

A line is a sentence pair, `i-j` a sure link from source word i to target word j, `ipj` a possible one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.text.split_words import split_words

Pairs = set[tuple[int, int]]  # (source word, target word), from 0
COUNTED = ("in sure", "in possible", "links", "sure")
_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})")


@dataclass(frozen=True)
class Gold:
    """The links that annotators marked in one sentence pair."""

    sure: Pairs
    possible: Pairs  # the sure ones included


@dataclass(frozen=True)
class Quality:
    """How well alignments agree with gold ones, over all sentence pairs."""

    error_rate: float
    precision: float
    recall: float


@reads_file
def read_gold(path: str | Path, first: int = 1) -> list[Gold]:
    """Gold links from a file; `first` is the index of the first word in it."""
    links = []
    for sure, possible in _read(path, first):
        links.append(Gold(sure, sure | possible))
    return links


@reads_file
def read_links(path: str | Path, first: int = 0) -> list[Pairs]:
    """An aligner's links from a file; `first` is the index of the first word in it."""
    return [sure | possible for sure, possible in _read(path, first)]


def _read(path: str | Path, first: int) -> Iterable[tuple[Pairs, Pairs]]:
    for number, line in enumerate(read_lines(Path(path), other=""), 1):
        links: dict[str, Pairs] = {"-": set(), "p": set()}
        for text in split_words(line):
            match = _LINK.fullmatch(text)
            if match is None or min(int(match[1]), int(match[3])) < first:
                raise wrong(
                    Path(path), number, f"expected links such as 3-4 or 3p4, counted from {first}, got {excerpt(text)}."
                )
            links[match[2]].add((int(match[1]) - first, int(match[3]) - first))
        yield links["-"], links["p"]


def quality(found: Sequence[Pairs], gold: Sequence[Gold]) -> Quality:
    """Och and Ney, 2003: with links A, sure S and possible P ⊇ S, counted over all sentence pairs,

    AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|),     precision = |A∩P| / |A|,     recall = |A∩S| / |S|
    """
    if len(found) != len(gold):
        raise BadValue(
            f"found: expected links for each of the {len(gold)} sentence pairs of the gold file, got {len(found)}."
        )
    counts = [tally(links, gold_pair) for links, gold_pair in zip(found, gold, strict=True)]
    total = {name: sum(count[name] for count in counts) for name in COUNTED}
    return Quality(
        error_rate(total),
        total["in possible"] / total["links"] if total["links"] else 1.0,
        total["in sure"] / total["sure"] if total["sure"] else 1.0,
    )


def tally(found: Pairs, gold: Gold) -> dict[str, float]:
    """The numbers of one sentence pair that the error rate is made of; they add up over sentence pairs."""
    numbers = (len(found & gold.sure), len(found & gold.possible), len(found), len(gold.sure))
    return dict(zip(COUNTED, map(float, numbers), strict=True))


def error_rate(counts: Mapping[str, float]) -> float:
    """The alignment error rate, from the sums of `tally`."""
    of = counts["links"] + counts["sure"]
    return 1 - (counts["in sure"] + counts["in possible"]) / of if of else 0.0
