"""What separates the words of a text in a file or on the command line: the white space of ASCII, and nothing else.

`str.split()` and `str.strip()` also take U+3000, U+00A0, U+0085 and U+2028 for white space. Programs that write files
of words put spaces or tabs between them, so that such a character is a word, or inside of one; links and tags count it.

    >>> split_words("a \\u3000 b\\u00a0c")
    ['a', '\\u3000', 'b\\xa0c']
"""

from __future__ import annotations

import re

SPACE = " \t\n\r\f\v"
_WORD = re.compile(f"[^{SPACE}]+")


def split_words(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text)


def trimmed(text: str) -> str:
    """A text without the white space at its ends; empty where it is blank."""
    return text.strip(SPACE)
