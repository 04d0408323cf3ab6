"""Token texts in figures: never interpreted, always drawable, cut to a length."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from matplotlib import font_manager

LETTERS = 14  # characters of a label on an axis
WIDE = 0.64  # width of a character relative to the font size, about
MOST_LINES = 4  # lines of a site's name
MISSING = "□"  # for a character that no installed font has
_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "·"}
# Fonts with characters that DejaVu Sans (which comes with matplotlib) lacks, used where they are installed.
_MORE = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Noto Sans SC",
    "Noto Sans KR",
    "Source Han Sans",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "IPAGothic",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans Arabic",
    "Unifont",
    "Arial Unicode MS",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Yu Gothic",
    "Nirmala UI",
)


def readable(piece: str, longest: int = LETTERS) -> str:
    """A label that can be drawn: visible marks for white space, a box for characters that no font has."""
    if not piece.strip():
        return "".join(_MARKS.get(letter, "·") for letter in piece[:longest]) or _MARKS[""]
    stripped = piece.strip()
    shown = "".join(letter if letter == " " else _MARKS.get(letter, letter) for letter in stripped[: 4 * longest])
    # NFC, so that an accent is not drawn beside its letter. Control and direction characters become boxes.
    shown = unicodedata.normalize("NFC", shown)
    shown = "".join(letter if letter.isprintable() and letter in _drawable() else MISSING for letter in shown)
    if len(stripped) <= 4 * longest and len(shown) <= longest:
        return shown
    return shown[: longest - 1] + "…"


def lines_of(path: str, inches: float, size: float) -> str:
    """A dotted name broken into lines that fit a width, at `size` points; a very long one is cut at the start."""
    room = max(8, int(inches * 72 / (WIDE * size)))
    name = readable(path, max(len(path), 1))
    if len(name) > MOST_LINES * room:
        name = "…" + name[1 - MOST_LINES * room :]
    lines = [""]
    for segment in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1]) + len(segment) > room:
            lines.append("")
        lines[-1] += segment
        while len(lines[-1]) > room:
            lines[-1:] = [lines[-1][:room], lines[-1][room:]]
    return "\n".join(lines)


def families() -> list[str]:
    """The installed fonts, in the order in which characters are looked up."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _MORE if name in installed)]


class _Letters:
    """The characters that some fonts have."""

    def __init__(self, names: Sequence[str]) -> None:
        self.codes: set[int] = set()
        for name in names:
            self.codes.update(font_manager.get_font(font_manager.findfont(name)).get_charmap())

    def __contains__(self, letter: str) -> bool:
        return ord(letter) in self.codes


@lru_cache(maxsize=1)
def _drawable() -> _Letters:
    return _Letters(families())


def thinned(labels: Sequence[str], room: int, longest: int = LETTERS) -> list[tuple[int, str]]:
    """At most `room` pairs (index, label): every label, or every second, third, …"""
    step = max(1, -(-len(labels) // max(1, room)))
    return [(index, readable(labels[index], longest)) for index in range(0, len(labels), step)]
