"""Every question a page may ask, checked and answered: the same for a browser and for a notebook.

A question is a path ("tile") and a few words by name. Each word is read as a whole number in a range; everything else
is refused before any work begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from regard.errors import BadValue, RegardError
from regard.viewer.facts import facts, rollout
from regard.viewer.keeping import Kept
from regard.viewer.packets import DEEPEST, Asked, Packets
from regard.viewer.stage import Stage

MOST = 2**31 - 1
MOST_TOP = 64
JSON, BYTES = "application/json", "application/octet-stream"


class NoSuch(BadValue):
    """A question nobody knows an answer to: another path, or something this stage does not have."""


class Answers:
    """Answers about one stage."""

    def __init__(self, stage: Stage, kept: Kept | None = None) -> None:
        self.stage, self.kept = stage, kept or Kept()
        self.packets = Packets(stage, self.kept)
        self._paths: dict[str, Callable[[_Words], tuple[str, bytes]]] = {
            "scene": self._scene, "overview": self._overview, "facts": self._facts, "tile": self._tile,
            "row": self._row, "column": self._column, "top": self._top, "rollout": self._rollout,
        }  # fmt: skip

    def answer(self, path: str, given: Mapping[str, str]) -> tuple[str, bytes]:
        """Content type and content. `NoSuch` for 404, another `RegardError` for a question that is wrong."""
        if path not in self._paths:
            raise NoSuch(f"There is no such question. Known: {', '.join(self._paths)}.")
        return self._paths[path](_Words(given))

    def _scene(self, words: _Words) -> tuple[str, bytes]:
        words.done()
        return JSON, self._once("scene", lambda: packed(self.stage.scene()))

    def _overview(self, words: _Words) -> tuple[str, bytes]:
        variant, call = self._variant(words), self._call(words)
        words.done()
        return BYTES, self._once(("overview", variant, call), lambda: self.packets.overview(variant, call))

    def _facts(self, words: _Words) -> tuple[str, bytes]:
        variant, call = self._variant(words), self._call(words)
        words.done()
        return JSON, self._once(("facts", variant, call), lambda: packed(facts(self.packets, variant, call)))

    def _tile(self, words: _Words) -> tuple[str, bytes]:
        asked = self._asked(words)
        level, x, y = words.whole("level", 0, DEEPEST), words.whole("x", 0, MOST), words.whole("y", 0, MOST)
        words.done()
        return BYTES, self.packets.tile(asked, level, x, y)

    def _row(self, words: _Words) -> tuple[str, bytes]:
        asked, row = self._asked(words), words.whole("row", 0, MOST)
        words.done()
        return BYTES, _floats(self.packets.row(asked, row))

    def _column(self, words: _Words) -> tuple[str, bytes]:
        asked, key = self._asked(words), words.whole("key", 0, MOST)
        words.done()
        return BYTES, _floats(self.packets.column(asked, key))

    def _top(self, words: _Words) -> tuple[str, bytes]:
        asked, top = self._asked(words), words.whole("top", 1, MOST_TOP, 8)
        words.done()
        if asked.minus is not None:
            raise BadValue("minus: the strongest keys of a difference are not offered. Ask for rows.")
        return JSON, packed(self.packets.top(asked, top))

    def _rollout(self, words: _Words) -> tuple[str, bytes]:
        variant, call, row = self._variant(words), self._call(words), words.whole("row", 0, MOST)
        words.done()
        try:
            found = self._once(
                ("rollout", variant, call, row), lambda: _floats(rollout(self.stage, variant, call, row))
            )
        except RegardError as why:
            raise NoSuch(str(why)) from None
        return BYTES, found

    def _asked(self, words: _Words) -> Asked:
        sites = len(self.stage.places)
        return Asked(
            variant=self._variant(words),
            site=words.whole("site", 0, sites - 1),
            head=words.whole("head", 0, MOST),
            call=self._call(words),
            minus=words.whole("minus", 0, len(self.stage.variants) - 1) if "minus" in words else None,
        )

    def _variant(self, words: _Words) -> int:
        return words.whole("variant", 0, len(self.stage.variants) - 1, 0)

    def _call(self, words: _Words) -> int:
        return words.whole("call", -1, MOST, -1)

    def _once(self, question: object, make: Callable[[], bytes]) -> bytes:
        found: bytes = self.kept.get(("answer", question), make, len)
        return found


class _Words:
    """What a question says, taken word by word; what is left over was a mistake."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.left = dict(given)

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        text = self.left.pop(name, None)
        if text is None:
            if default is None:
                raise BadValue(f"{name}: it is missing. Give a whole number from {least} to {most}.")
            return default
        plain = str(text)
        digits = plain.removeprefix("-")
        if (
            not (digits.isascii() and digits.isdigit() and len(digits) <= 10)
            or not least <= int(plain) <= most
        ):
            raise BadValue(f"{name}: expected a whole number from {least} to {most}.")
        return int(plain)

    def done(self) -> None:
        if self.left:
            raise BadValue("There are words in the question that nobody asked for. Leave them out.")


def packed(value: Any) -> bytes:
    """JSON as bytes; numbers that JSON has no form for are a mistake here."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _floats(numbers: Any) -> bytes:
    return np.ascontiguousarray(numbers, dtype="<f4").tobytes()
