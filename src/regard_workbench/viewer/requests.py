"""Every request a page may make, checked and answered: the same for a browser and for a notebook.

A request is a path ("tile") and named parameters. Each parameter must be an integer in a range; anything else is
refused before any work begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from regard.errors import BadValue, RegardError
from regard_workbench.viewer.cache import ByteCache
from regard_workbench.viewer.facts import facts
from regard_workbench.viewer.fonts import page_font
from regard_workbench.viewer.layer_paths import through_layers
from regard_workbench.viewer.packets import DEEPEST, MapRequest, Packets
from regard_workbench.viewer.page_model import PageModel

MOST = 2**31 - 1
MOST_TOP = 64
JSON, BYTES = "application/json", "application/octet-stream"


class NotFound(BadValue):
    """A path that does not exist, or something that this page model does not have."""


class RequestHandler:
    """Answers the requests about one page model."""

    def __init__(self, page_model: PageModel, cache: ByteCache | None = None) -> None:
        self.page_model, self.cache = page_model, cache or ByteCache()
        self.packets = Packets(page_model, self.cache)
        self._paths: dict[str, Callable[[_Parameters], tuple[str, bytes]]] = {
            "scene": self._scene,
            "overview": self._overview,
            "facts": self._facts,
            "tile": self._tile,
            "row": self._row,
            "column": self._column,
            "top": self._top,
            "strongest": self._strongest,
            "font": self._font,
            "rollout": partial(self._through, "rollout"),
            "flow": partial(self._through, "flow"),
        }

    def answer(self, path: str, given: Mapping[str, str]) -> tuple[str, bytes]:
        """Content type and content. Raises `NotFound` (404) or another `RegardError` (a wrong request)."""
        if path not in self._paths:
            raise NotFound(f"There is no such request. Known: {', '.join(self._paths)}.")
        return self._paths[path](_Parameters(given))

    def _scene(self, parameters: _Parameters) -> tuple[str, bytes]:
        parameters.done()
        return JSON, self._once("scene", lambda: packed(self.page_model.scene()))

    def _overview(self, parameters: _Parameters) -> tuple[str, bytes]:
        variant, call = self._variant(parameters), self._call(parameters)
        parameters.done()
        return BYTES, self._once(("overview", variant, call), lambda: self.packets.overview(variant, call))

    def _facts(self, parameters: _Parameters) -> tuple[str, bytes]:
        variant, call = self._variant(parameters), self._call(parameters)
        parameters.done()
        return JSON, self._once(("facts", variant, call), lambda: packed(facts(self.packets, variant, call)))

    def _tile(self, parameters: _Parameters) -> tuple[str, bytes]:
        request = self._map_request(parameters)
        level, x, y = (
            parameters.whole("level", 0, DEEPEST),
            parameters.whole("x", 0, MOST),
            parameters.whole("y", 0, MOST),
        )
        parameters.done()
        return BYTES, self.packets.tile(request, level, x, y)

    def _row(self, parameters: _Parameters) -> tuple[str, bytes]:
        request, row = self._map_request(parameters), parameters.whole("row", 0, MOST)
        parameters.done()
        return BYTES, _floats(self.packets.row(request, row))

    def _column(self, parameters: _Parameters) -> tuple[str, bytes]:
        request, key = self._map_request(parameters), parameters.whole("key", 0, MOST)
        parameters.done()
        return BYTES, _floats(self.packets.column(request, key))

    def _top(self, parameters: _Parameters) -> tuple[str, bytes]:
        request, top = self._map_request(parameters), parameters.whole("top", 1, MOST_TOP, 8)
        parameters.done()
        if request.minus is not None:
            raise BadValue("minus: the strongest keys of a difference are not available. Request rows.")
        return JSON, packed(self.packets.top(request, top))

    def _strongest(self, parameters: _Parameters) -> tuple[str, bytes]:
        """The strongest keys of each row of every head of a site: for the lines between two rows of tokens."""
        variant, call = self._variant(parameters), self._call(parameters)
        site = parameters.whole("site", 0, len(self.page_model.page_sites) - 1)
        top = parameters.whole("top", 1, MOST_TOP, 4)
        parameters.done()
        which = MapRequest(variant, site, 0, call)
        return BYTES, self._once(("strongest", which, top), lambda: self.packets.lines(which, top))

    def _font(self, parameters: _Parameters) -> tuple[str, bytes]:
        """A font for saved PDFs."""
        bold = parameters.whole("bold", 0, 1)
        parameters.done()
        return BYTES, page_font(bool(bold))

    def _through(self, kind: str, parameters: _Parameters) -> tuple[str, bytes]:
        """Rollout or flow of one row."""
        variant, call = self._variant(parameters), self._call(parameters)
        row = parameters.whole("row", 0, MOST)
        sites = len(self.page_model.page_sites)
        site = parameters.whole("site", 0, sites - 1) if "site" in parameters else None
        parameters.done()
        try:
            encoded = self._once(
                (kind, variant, call, row, site),
                lambda: _floats(through_layers(self.page_model, kind, variant, call, row, site)),
            )
        except RegardError as why:
            raise NotFound(str(why)) from None
        return BYTES, encoded

    def _map_request(self, parameters: _Parameters) -> MapRequest:
        sites = len(self.page_model.page_sites)
        return MapRequest(
            variant=self._variant(parameters),
            site=parameters.whole("site", 0, sites - 1),
            head=parameters.whole("head", 0, MOST),
            call=self._call(parameters),
            minus=parameters.whole("minus", 0, len(self.page_model.variants) - 1) if "minus" in parameters else None,
        )

    def _variant(self, parameters: _Parameters) -> int:
        return parameters.whole("variant", 0, len(self.page_model.variants) - 1, 0)

    def _call(self, parameters: _Parameters) -> int:
        return parameters.whole("call", -1, MOST, -1)

    def _once(self, question: object, make: Callable[[], bytes]) -> bytes:
        answer: bytes = self.cache.get(("answer", question), make, len)
        return answer


class _Parameters:
    """The parameters of a request, taken one by one; what is left over is a mistake."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.left = dict(given)

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        text = self.left.pop(name, None)
        if text is None:
            if default is None:
                raise BadValue(f"{name}: expected a whole number from {least} to {most}, got nothing.")
            return default
        plain = str(text)
        digits = plain.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or not least <= int(plain) <= most:
            raise BadValue(f"{name}: expected a whole number from {least} to {most}.")
        return int(plain)

    def done(self) -> None:
        if self.left:
            raise BadValue("The request has unknown parameters. Leave them out.")


def packed(value: Any) -> bytes:
    """JSON as bytes; refuses NaN and infinities, which JSON cannot hold."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _floats(numbers: Any) -> bytes:
    return np.ascontiguousarray(numbers, dtype="<f4").tobytes()
