"""Numbers and lists as a reader takes them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

from regard.comparison.columns import significant
SHARES = ("accuracy", "exact_match", "macro_f1")

WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
WIDTH = 120
HELD = "\u00a0"  # a space at which no line is broken
AS_IT_IS = ("#", "|", "```", "<", "![")


def value(number: float, metric: str) -> str:
    """A result: 98.1 %, 8.17, 0.0012."""
    if metric in SHARES:
        return f"{100 * number:.1f} %"
    return f"{number:.1e}" if 0 < abs(number) < 1e-4 else _short(number)


def interval(low: float, high: float, metric: str) -> str:
    """Between which numbers; a share cannot leave 0 to 100 %, a cost cannot fall below nothing."""
    if metric in SHARES:
        low, high = max(low, 0.0), min(high, 1.0)
        return f"{100 * low:.1f}–{100 * high:.1f} %"
    return f"{value(max(low, 0.0), metric)}–{value(high, metric)}"


def gap(worse: float, best: float, metric: str) -> str:
    """How far one is behind another, without a sign: 1.3 points, 3.6 %, 0.4 bits."""
    if metric in SHARES:
        return f"{100 * abs(best - worse):.1f} points"
    if metric == "perplexity":
        return f"{100 * abs(worse / best - 1):.1f} %"
    return f"{_short(abs(worse - best))} bits"


def amount(difference: float, metric: str) -> str:
    """A difference by itself."""
    if metric in SHARES:
        return f"{100 * difference:.1f} points"
    return _short(difference) + (" bits" if metric == "bits_per_sequence" else "")


def times(factor: float) -> str:
    """A factor: 2.3 ×, 14 ×."""
    return f"{factor:.1f} ×" if factor < 9.95 else f"{factor:.0f} ×"


def code(name: str) -> str:
    """A name as it is typed."""
    return f"`{name}`"


def listed(names: Sequence[str], most: int = 30) -> str:
    """`a`, `b` and `c`; of too many the first, and how many more."""
    shown = [code(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{count(len(names) - most)} more")
    return joined(shown)


def joined(parts: Sequence[str]) -> str:
    """a, b and c."""
    *ahead, last = parts
    return f"{', '.join(ahead)} and {last}" if ahead else last


def count(number: int) -> str:
    """A small whole number in words."""
    return WORDS[number] if 0 <= number < len(WORDS) else str(number)


def wrapped(text: str) -> str:
    """A page with its paragraphs and bullets broken into lines; headings, tables, pictures and code as they are."""
    return "\n\n".join(
        block if block.startswith(AS_IT_IS) else "\n".join(_lines(block)) for block in text.split("\n\n")
    )


def _lines(block: str) -> list[str]:
    """A paragraph, or bullets, in lines."""
    parts = re.split(r"\n(?=- )", block.replace(" %", HELD + "%"))
    return [
        line.replace(HELD, " ")
        for part in parts
        for line in textwrap.wrap(
            re.sub(r"[ \n]+", " ", part).strip(), WIDTH, subsequent_indent="  " if part.startswith("- ") else "",
            break_long_words=False, break_on_hyphens=False,
        )
    ]  # fmt: skip


def _short(number: float) -> str:
    """Three digits at most, fewer where the number is small."""
    if not number:
        return "0"
    return (
        significant(number) if abs(number) >= 1 else f"{number:.{1 - math.floor(math.log10(abs(number)))}f}"
    )
