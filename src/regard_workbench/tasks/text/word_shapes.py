"""The shape of a word: which sorts of characters follow each other, whatever they are.

A name that training never had still begins with a capital letter. A run of one sort is written once.

    >>> from regard_workbench.tasks.text.word_shapes import shape
    >>> shape("McDonald's"), shape("NASA"), shape("iPhone6"), shape("#2017")
    ("XxXx'x", 'X', 'xXxd', '#d')
"""

from __future__ import annotations

UPPER, LOWER, DIGIT = "Xxd"
LONGEST = 8  # of a longer shape its beginning: what is rarer than that says nothing


def _sort(char: str) -> str:
    """X for a capital letter, x for any other letter, d for a digit; else the character itself."""
    if char.isupper():
        return UPPER
    if char.isalpha():
        return LOWER
    return DIGIT if char.isdigit() else char


def shape(word: str) -> str:
    """The sorts of a word's characters, each run of one sort as one character."""
    sorts = ""
    for sort in map(_sort, word):
        if not sorts.endswith(sort):
            sorts += sort
    return sorts[:LONGEST]
