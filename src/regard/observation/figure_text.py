"""Pieces of a text as letters in a picture: only ever text, always drawable, short enough."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from matplotlib import font_manager

LETTERS = 14  # of a piece on an axis
WIDE = 0.64  # the width of a letter by its size, about
MOST_LINES = 4  # of a name
MISSING = "□"  # for a letter that no font here has
_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "·"}
# Beside DejaVu Sans, which comes with matplotlib: fonts with the letters it lacks, where they are installed.
_MORE = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR", "Source Han Sans",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "IPAGothic", "Noto Sans Devanagari",
    "Noto Sans Thai", "Noto Sans Arabic", "Unifont", "Arial Unicode MS", "Hiragino Sans", "PingFang SC",
    "Microsoft YaHei", "Malgun Gothic", "Yu Gothic", "Nirmala UI",
)  # fmt: skip


def readable(piece: str, longest: int = LETTERS) -> str:
    """A piece so that it can be seen and drawn: marks for spaces and ends of lines, a box for what no font has."""
    if not piece.strip():
        return "".join(_MARKS.get(letter, "·") for letter in piece[:longest]) or _MARKS[""]
    stripped = piece.strip()
    shown = "".join(
        letter if letter == " " else _MARKS.get(letter, letter) for letter in stripped[: 4 * longest]
    )
    # Composed, so that an accent is not drawn beside its letter. Controls, also those that turn the direction: boxes.
    shown = unicodedata.normalize("NFC", shown)
    shown = "".join(letter if letter.isprintable() and letter in _drawable() else MISSING for letter in shown)
    if len(stripped) <= 4 * longest and len(shown) <= longest:
        return shown
    return shown[: longest - 1] + "…"


def lines_of(path: str, inches: float, size: float) -> str:
    """A dotted name in lines that fit a width, in letters of `size` points; of an endless one only the end."""
    room = max(8, int(inches * 72 / (WIDE * size)))
    whole = readable(path, max(len(path), 1))
    if len(whole) > MOST_LINES * room:
        whole = "…" + whole[1 - MOST_LINES * room :]
    lines = [""]
    for part in re.findall(r"[^.]*\.?", whole):
        if lines[-1] and len(lines[-1]) + len(part) > room:
            lines.append("")
        lines[-1] += part
        while len(lines[-1]) > room:
            lines[-1:] = [lines[-1][:room], lines[-1][room:]]
    return "\n".join(lines)


def families() -> list[str]:
    """The fonts letters are taken from, the first that has one."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _MORE if name in installed)]


class _Letters:
    """The letters some fonts have."""

    def __init__(self, names: Sequence[str]) -> None:
        self.codes: set[int] = set()
        for name in names:
            self.codes.update(font_manager.get_font(font_manager.findfont(name)).get_charmap())

    def __contains__(self, letter: str) -> bool:
        return ord(letter) in self.codes


@lru_cache(maxsize=1)
def _drawable() -> _Letters:
    return _Letters(families())


def thinned(labels: Sequence[str], room: int) -> list[tuple[int, str]]:
    """(place, label), at most `room` of them: every one, or every second, third, …"""
    step = max(1, -(-len(labels) // max(1, room)))
    return [(place, readable(labels[place])) for place in range(0, len(labels), step)]
