"""JSON from files of strangers: what is no JSON is said with file and line, in one place for all readers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import excerpt, read_text, wrong

_SPACE = re.compile(r"[ \t\n\r]*")


@contextmanager
def json_errors(path: Path, line: int | None = None) -> Iterator[None]:
    """Inside, what Python's reader of JSON raises becomes an error that names the file and the line.

    `line`: which line the text begins in; None: it is the whole file.
    """
    try:
        yield
    except json.JSONDecodeError as error:
        words = f"not valid JSON: {error.msg} at column {error.colno}. Was the file cut off?"
        raise wrong(path, (line or 1) - 1 + error.lineno, words) from None
    except RecursionError:
        raise wrong(path, line, "not valid JSON: nested too deeply.") from None
    except ValueError as error:  # a number of thousands of digits
        raise wrong(path, line, f"not valid JSON: {str(error).partition(';')[0]}.") from None


@reads_file
def read_json(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> Any:
    """The value in a file. `other`: how another encoding is named, as the reader can type it."""
    text = read_text(path, encoding, other)
    with json_errors(path):
        return json.loads(text)


def json_object(path: Path, line: int, text: str, form: str = "a JSON object in each line") -> dict[str, Any]:
    """The object in a line of a file of JSON lines. `form`: what is expected, for the message."""
    with json_errors(path, line):
        fields = json.loads(text)
    if not isinstance(fields, dict):
        raise wrong(path, line, f"expected {form}, got {excerpt(text)}.")
    return fields


class JsonWalk:
    """A walk through a JSON text that knows the line of each element, in one pass.

    `elements` and `members` stop before each value of a list or an object. The caller reads it (`value`), walks into
    it, or goes on: then it is skipped.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path, self._text = path, text
        self._decoder = json.JSONDecoder()
        self._place, self._line, self._counted = 0, 1, 0
        self._skip_space()

    @property
    def line(self) -> int:
        """The line of the next value, from 1."""
        self._line += self._text.count("\n", self._counted, self._place)
        self._counted = self._place
        return self._line

    @property
    def at_list(self) -> bool:
        """Whether the next value is a list."""
        return self._next == "["

    def value(self) -> Any:
        """The next value."""
        with json_errors(self.path):
            decoded, self._place = self._decoder.raw_decode(self._text, self._place)
        self._skip_space()
        return decoded

    def elements(self, what: str) -> Iterator[None]:
        """Stop before each element of the list that comes next; `what` they are, for the message if it is none."""
        if self._next != "[":
            end = self._place + 20
            raise self._wrong(f"expected a JSON list of {what}, got {excerpt(self._text[self._place : end])}.")
        for _ in self._stops("]"):
            yield from self._stop()

    def members(self, what: str) -> Iterator[str]:
        """Stop before each value of the object that comes next, with its key; nothing where no object comes next."""
        if self._next != "{":
            return
        for _ in self._stops("}"):
            if self._next != '"':
                raise self._wrong(f"not valid JSON: expected a key of {what} in double quotes.")
            key = self.value()
            self._take(":")
            for _ in self._stop():
                yield key

    def _stops(self, end: str) -> Iterator[None]:
        """Before each part of a list or an object, of which the opening bracket comes next."""
        self._take(self._next)
        if self._next == end:
            self._take(end)
            return
        while True:
            yield
            if self._next not in (",", end):
                raise self._wrong(f"not valid JSON: expected ',' or '{end}'. Was the file cut off?")
            if self._take(self._next) == end:
                return

    def _stop(self) -> Iterator[None]:
        """Before a value; behind it afterwards."""
        before = self._place
        yield
        if self._place == before:
            self.value()

    @property
    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _take(self, sign: str) -> str:
        if self._next != sign:
            raise self._wrong(f"not valid JSON: expected {sign!r}. Was the file cut off?")
        self._place += 1
        self._skip_space()
        return sign

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._place)
        assert space is not None  # it matches nothing, too
        self._place = space.end()

    def _wrong(self, text: str) -> Exception:
        return wrong(self.path, self.line, text)
