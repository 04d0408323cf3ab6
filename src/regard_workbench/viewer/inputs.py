"""The inputs of one page: the first one, and those that the user gives on the page itself.

Each input has a number and a page model of its own. The most recent are kept, so that a second window, or a request
that was on its way, is still answered for the input it asked about.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import BadType, BadValue
from regard_workbench.viewer.cache import MEBIBYTE, ByteCache
from regard_workbench.viewer.locking import alone
from regard_workbench.viewer.page_model import PageModel
from regard_workbench.viewer.requests import JSON, NotFound, RequestHandler, packed

KEPT = 4  # inputs
CACHED = 512 * MEBIBYTE  # of all of them
KINDS = ("image", "sound", "table")
LONGEST_NAME = 60  # characters of a file's name
CAUSES = {"by": str, "against": str, "positions": str, "measure": str, "position": int}
_HALF = re.compile(r"[\ud800-\udfff]")  # of a pair of UTF-16; JSON can hold it, UTF-8 cannot
FIELDS = {"text": str, "target": str, "generate": int, "beams": int, "example": int, "edited": bool}


@dataclass(frozen=True)
class NewInput:
    """Another input: a text, a file or an example of the task."""

    text: str | None = None
    target: str | None = None
    generate: int | None = None
    beams: int = 1
    example: int | None = None
    edited: bool = False  # a changed token: show it beside the input before
    kind: str | None = None  # of a file
    path: str | None = None


@dataclass(frozen=True)
class CauseQuestion:
    """What the answer comes from: a sweep of patches against another text, or something about this input alone."""

    by: str = "heads"
    against: str = ""
    positions: str | None = None  # "each" on its own, or "all" together
    measure: str | None = None  # of a sweep: "logit", "loss" or "probability"
    position: int | None = None  # of the answer


def read_fields(body: bytes, known: Mapping[str, type]) -> dict[str, Any]:
    """The fields of a JSON body; every one is checked."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise BadValue("body: expected JSON.") from None
    if not isinstance(fields, dict) or not set(fields) <= set(known):
        raise BadValue(f"body: expected an object with some of {', '.join(known)}.")
    for name, value in fields.items():
        if value is not None and type(value) is not known[name]:
            raise BadType(f"{name}: expected {known[name].__name__}, got {type(value).__name__}.")
        if isinstance(value, str) and (half := _HALF.search(value)):
            raise BadValue(f"{name}: expected whole characters, got half of one at {half.start()} (a lone surrogate).")
    return {name: value for name, value in fields.items() if value is not None}


class Inputs:
    """Page models by number; answers requests about each."""

    def __init__(self, first: PageModel, live: bool = True) -> None:
        """live: whether other inputs may be given."""
        self._live = live and first.live is not None
        self._handlers: OrderedDict[int, RequestHandler] = OrderedDict()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._keep(self._numbered(first, []), first)

    def answer(self, path: str, given: Mapping[str, str]) -> tuple[str, bytes]:
        """Content type and content; the parameter `input` is a number of an input, by default the newest."""
        words = dict(given)
        number = words.pop("input", None)
        handler = self._handler(number)
        return handler.answer(path, words)

    def read_text(self, body: bytes, number: str | None) -> tuple[str, bytes]:
        """Run the model on the input of a JSON body; returns the new scene."""
        return self._read(NewInput(**read_fields(body, FIELDS)), number)

    def cause(self, body: bytes, number: str | None) -> tuple[str, bytes]:
        """What the answer comes from, for the question of a JSON body."""
        question = CauseQuestion(**read_fields(body, CAUSES))
        before = self._shown(number)
        assert before.live is not None
        with alone():
            return JSON, packed(before.live.cause(question, before))

    def read_file(self, body: bytes, words: Mapping[str, str]) -> tuple[str, bytes]:
        """Run the model on a file: `kind` and `name` in the parameters, its bytes in the body."""
        kind, name, text = words.get("kind"), words.get("name", ""), words.get("text")
        if kind not in KINDS or not set(words) <= {"kind", "name", "text", "input"}:
            raise BadValue(f"kind: expected {', '.join(KINDS)}.")
        if not body:
            raise BadValue(f"{kind}: the file is empty.")
        with tempfile.TemporaryDirectory(prefix="regard-view-") as folder:
            path = Path(folder) / safe_name(name)
            path.write_bytes(body)
            return self._read(NewInput(text=text or None, kind=kind, path=str(path)), words.get("input"))

    def _read(self, given: NewInput, number: str | None) -> tuple[str, bytes]:
        before = self._shown(number)
        assert before.live is not None
        with alone():  # functions of torch are replaced while a model runs under observation
            page_model, notes = before.live.read(given, before)
        new = self._numbered(page_model, notes)
        scene = packed(page_model.scene())
        self._keep(new, page_model)  # last: the page opens with the newest input, so it must be fit to show
        return JSON, scene

    def _shown(self, number: str | None) -> PageModel:
        """The page model that the page shows, if its model is open."""
        if not self._live:
            raise NotFound("This page shows one input. Open a model with `regard view` to give it another.")
        return self._handler(number).page_model

    def _numbered(self, page_model: PageModel, notes: list[str]) -> int:
        number = next(self._numbers)
        if self._live and page_model.live is not None:
            page_model.input = {**page_model.live.scene(), "number": number, "notes": notes}
        return number

    def _keep(self, number: int, page_model: PageModel) -> None:
        handler = RequestHandler(page_model, ByteCache(CACHED // KEPT))
        with self._lock:
            self._newest = number
            self._handlers[number] = handler
            while len(self._handlers) > KEPT:
                self._handlers.popitem(last=False)

    def _handler(self, number: str | None) -> RequestHandler:
        with self._lock:
            if number is None:
                return self._handlers[self._newest]
            handler = self._handlers.get(int(number)) if re.fullmatch(r"[0-9]{1,9}", number) else None
        if handler is None:
            raise NotFound("This input is no longer kept. Give it again.")
        return handler


def safe_name(name: str) -> str:
    """A file name of letters, digits, dots and dashes, for a file in a folder of its own."""
    plain = re.sub(r"[^\w.-]+", "-", Path(name.replace("\0", "")).name).strip(".-")
    return plain[-LONGEST_NAME:].lstrip(".-") or "file"
