"""Word error rate: substitutions, insertions and deletions that turn what was heard into what was said."""

from __future__ import annotations

from collections.abc import Sequence


def distance(heard: Sequence[str], said: Sequence[str]) -> int:
    """The least number of words to substitute, insert or delete (Levenshtein 1966)."""
    row = list(range(len(said) + 1))
    for number, word in enumerate(heard, 1):
        diagonal, row[0] = row[0], number
        for place, spoken in enumerate(said, 1):
            diagonal, row[place] = (row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (word != spoken)))
    return row[-1]
