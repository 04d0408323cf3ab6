"""Untrusted text on a terminal (file names, tokens, messages): control characters are made visible."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len

from regard_workbench.tasks.text.characters import whole_characters

LONGEST_WORD = 200  # characters of an argument that a message repeats


def said(message: str, words: Sequence[str] = ()) -> str:
    """A message that may repeat arguments: in those, control characters are escaped and long ones are cut.

    Other control characters are made visible; the message's own line breaks stay.
    """
    typed = {text for word in words for text in (word, word.partition("=")[2])}
    for word in sorted(typed, key=len, reverse=True):
        if word and (not word.isprintable() or len(word) > LONGEST_WORD):
            cut = word if len(word) <= LONGEST_WORD else word[:LONGEST_WORD] + "…"
            message = message.replace(word, repr(cut)[1:-1])
    return printable(message)


def tell(text: str) -> None:
    """Print a line to stderr, beside the results."""
    print(printable(text), file=sys.stderr, flush=True)


def visible(letter: str) -> str:
    """A character one or two columns wide: a symbol replaces what moves the cursor or has no width."""
    number = ord(letter)
    if number < 0x20:
        return chr(0x2400 + number)  # ␀ ␉ ␊ …
    if number == 0x7F:
        return "␡"
    if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me") or cell_len(letter) < 1:
        return "�"
    return letter


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters except line breaks and tabs are made visible."""
    return "".join(
        visible(letter) if letter not in "\n\t" and _is_control(letter) else letter for letter in whole_characters(text)
    )


def _is_control(letter: str) -> bool:
    """Control characters, and those that change the writing direction; joiners of emoji are harmless."""
    turning = "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069"
    return turning or unicodedata.category(letter) == "Cc"
