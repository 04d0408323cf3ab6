"""Turn a formula of a docstring into MathML, which browsers draw themselves: no script, no font, no network.

Docstrings write formulas as plain text: `a_ij = softmax_j(q_i·k_j / √d),   o_i = Σ_j a_ij v_j`. The notation:

- `_x`, `_ij` and `_{j−i}` are subscripts; raised characters (², ᵀ, ʰ) are superscripts; `√` is a root;
- ` / ` with spaces is a fraction of the terms on both sides; `/` without spaces stays in the line;
- one letter is a variable, a longer word a function or a word of the sentence;
- three spaces or more, or two after a comma or a colon, separate two formulas of one line.
"""

from __future__ import annotations

import re
from html import escape

RAISED = {"²": "2", "¹": "1", "³": "3", "ᵀ": "T", "ʰ": "h"}
SUMS = "ΣΠ"
TOKEN = re.compile(
    r"""(?P<string>"[^"]*") | (?P<number>\d+) | (?P<word>[A-Za-z]+(?:-[a-z]+)*\d*) | (?P<greek>(?![ΣΠ])[α-ωΑ-Ω])
    | (?P<fraction>\s/\s) | (?P<space>\s+) | (?P<operator>//|.)""",
    re.VERBOSE,
)
APART = re.compile(r"\s{3,}|(?<=[,:])\s{2,}")
ENDS_NUMERATOR = {"=", "+", "−", ",", ";", "≤", "<", "~", "←", ":"}
ENDS_DENOMINATOR = ENDS_NUMERATOR | {"·", "⊙", "⊗"}


def block(text: str) -> str:
    """All lines of a formula, one below the other, as HTML."""
    lines = [APART.split(line.strip()) for line in text.splitlines()]
    return '<div class="formulas">' + "".join(f"<div>{_line(parts)}</div>" for parts in lines) + "</div>"


def _line(parts: list[str]) -> str:
    """The formulas of one line; a first part that equates nothing (`pre:`, `alibi`) is its label."""
    labelled = len(parts) > 1 and (parts[0].endswith(":") or not re.search("[=←~]", parts[0]))
    kinds = ["formula label" if labelled and not number else "formula" for number in range(len(parts))]
    return "".join(f'<span class="{kind}">{math(part)}</span>' for kind, part in zip(kinds, parts, strict=True))


def math(text: str) -> str:
    """One formula as a `math` element."""
    inside = _Formula(text).row(until="")
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" displaystyle="true">{inside}</math>'


class _Formula:
    """A reader of tokens that returns MathML."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [(found.lastgroup or "", found[0]) for found in TOKEN.finditer(text)]
        self.place = 0

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        index = self.place + ahead
        return self.tokens[index] if index < len(self.tokens) else ("", "")

    def _take(self) -> tuple[str, str]:
        if self.place == len(self.tokens):
            raise ValueError(f"the formula {self.text!r} ends too early: nothing closes a bracket")
        self.place += 1
        return self.tokens[self.place - 1]

    def row(self, until: str) -> str:
        """Everything up to a closing bracket (not read), with fractions built."""
        found: list[tuple[str, str]] = []  # (what ends a fraction there, MathML)
        while self.place < len(self.tokens) and self._peek()[1] not in (until or "\0"):
            if self._peek()[0] == "fraction":
                self.place += 1
                above = _terms_before(found)
                below = self._denominator(until)
                found.append(("term", f"<mfrac><mrow>{above}</mrow><mrow>{below}</mrow></mfrac>"))
            else:
                found.append(self._item())
        return "".join(text for _, text in found)

    def _denominator(self, until: str) -> str:
        parts = []
        while self.place < len(self.tokens):
            kind, text = self._peek()
            if text in (until or "\0") or kind == "fraction" or text in ENDS_DENOMINATOR:
                break
            if kind == "space" and (self._peek(1)[1] in ENDS_DENOMINATOR or self._is_prose(1)):
                break
            parts.append(self._item()[1])
        return "".join(parts)

    def _item(self) -> tuple[str, str]:
        """The next token with its subscripts and superscripts."""
        prose = self._is_prose(0)
        kind, text = self._take()
        if kind == "space":
            return "term", '<mspace width="0.28em"/>'
        if kind == "string":
            return "prose", f"<mtext>{escape(text)}</mtext>"
        if prose:
            return "prose", f"<mtext>{escape(text)}</mtext>"
        if text == "√":
            return "term", f"<msqrt>{self._item()[1]}</msqrt>"
        if text in ("(", "["):
            close = {"(": ")", "[": "]"}[text]
            inside = self.row(until=close)
            self._take()
            tall = "true" if "<mfrac>" in inside else "false"  # without a math font, browsers stretch too far
            fences = [f'<mo stretchy="{tall}">{sign}</mo>' for sign in (text, close)]
            base = f"<mrow>{inside.join(fences)}</mrow>"
            return "term", self._scripts(base, False)
        return (text if text in ENDS_NUMERATOR else "term"), self._scripts(_leaf(kind, text), text in SUMS)

    def _scripts(self, base: str, below: bool) -> str:
        primes = ""
        while self._peek()[1] == "'":
            self._take()
            primes += "′"
        sub = ""
        if self._peek()[1] == "_":
            self._take()
            sub = self._subscript()
        raised = ""
        while self._peek()[1] in RAISED:
            raised += _leaf("word", RAISED[self._take()[1]])
        base = f"<mrow>{base}<mo>{primes}</mo></mrow>" if primes else base
        if sub and raised:
            return f"<msubsup>{base}<mrow>{sub}</mrow><mrow>{raised}</mrow></msubsup>"
        if sub:
            name = "munder" if below else "msub"
            return f"<{name}>{base}<mrow>{sub}</mrow></{name}>"
        return f"<msup>{base}<mrow>{raised}</mrow></msup>" if raised else base

    def _subscript(self) -> str:
        kind, text = self._take()
        if text == "{":
            inside = self.row(until="}")
            self._take()
            return inside
        if kind == "word":  # e_ij has the subscripts i and j
            return "".join(f"<mi>{letter}</mi>" for letter in text)
        return _leaf(kind, text)

    def _is_prose(self, ahead: int) -> bool:
        """Whether a token is a word of the sentence, not of the formula."""
        kind, text = self._peek(ahead)
        if kind != "word":
            return False
        after = self._peek(ahead + 1)[1]
        if len(text) == 1:  # the article: "s a sinusoid"
            spaced = after.isspace() and self._peek(ahead - 1)[1].isspace()
            following = self._peek(ahead + 2)
            return text == "a" and spaced and following[0] == "word" and len(following[1]) > 2
        return after not in ("(", "_", "'")


def _terms_before(found: list[tuple[str, str]]) -> str:
    """Take the terms of the numerator off the end of what was read."""
    taken: list[str] = []
    while found and found[-1][0] == "term":
        taken.append(found.pop()[1])
    while taken and taken[-1].startswith("<mspace"):  # a space that belongs to what stands before
        found.append(("term", taken.pop()))
    return "".join(reversed(taken))


def _leaf(kind: str, text: str) -> str:
    if kind == "number" or text.isdigit():
        return f"<mn>{text}</mn>"
    if kind in ("word", "greek"):
        return f"<mi>{escape(text)}</mi>"  # MathML sets one letter in italics, longer names upright
    if text in SUMS:
        return f'<mo largeop="true" movablelimits="false">{ {"Σ": "∑", "Π": "∏"}[text] }</mo>'
    if text in "|":
        return '<mo stretchy="false" form="prefix" lspace="0" rspace="0">|</mo>'
    return f"<mo>{escape(text)}</mo>"
