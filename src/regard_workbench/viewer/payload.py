"""The payload of a page without a server: the scene, an overview, and as many weights as there is room for.

Small inputs are stored whole. For larger ones every head stores the strongest keys of each row; the requested heads (by
default the first of each layer, as long as there is room) are also stored whole.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.errors import BadValue, RegardError
from regard_workbench.viewer.codes import Codes, encode
from regard_workbench.viewer.fonts import page_font
from regard_workbench.viewer.packets import MapRequest
from regard_workbench.viewer.page_model import THUMB, PageModel
from regard_workbench.viewer.requests import RequestHandler

TOP = 8
LONGEST = 65536  # keys: a key is two bytes
ROOM = 5_000_000  # bytes of a page
PAGE = 400_000  # bytes for script, style and labels
BASE64 = 4 / 3
ENTRY = 110  # bytes of a part's entry in the list
TOPS = 0.6  # share of the room for the strongest keys of each row
STEPS = 500_000  # bytes of overviews; beyond, only the last step's is stored


@dataclass
class Payload:
    """JSON data, and the bytes its offsets point into."""

    data: dict[str, Any]
    content: bytearray = field(default_factory=bytearray)

    def add(self, content: bytes) -> int:
        """Append bytes; returns their offset."""
        at = len(self.content)
        self.content += content
        return at

    def packed(self) -> bytes:
        """The bytes, deflated."""
        return zlib.compress(bytes(self.content), 9)


@dataclass(frozen=True)
class _Map:
    """One map, and what storing it costs."""

    variant: int
    site: int
    head: int
    call: int
    queries: int
    keys: int

    @property
    def whole(self) -> int:
        """Bytes of the page with every weight."""
        return int(self.queries * self.keys * BASE64) + ENTRY

    def strongest(self, top: int) -> int:
        """Bytes of the page with the `top` keys of each row."""
        return int(self.queries * top * 3 * BASE64) + ENTRY

    def part(self, kind: str) -> dict[str, Any]:
        """Its entry in the list of parts."""
        return {"kind": kind, "variant": self.variant, "site": self.site, "head": self.head, "call": self.call}


def payload(
    page_model: PageModel,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    sites: Sequence[int] | None = None,
    room: int = ROOM,
    top: int = TOP,
) -> Payload:
    """As much of a page model as fits into about `room` bytes.

    heads: (site, head) pairs to store whole. sites: store only these; all by default.
    """
    _check(page_model, heads)
    handler = RequestHandler(page_model)
    carried = Payload(
        {"scene": {**page_model.scene(), "embedded": True}, "overview": [], "facts": [], "parts": [], "fonts": []}
    )
    for bold in (False, True):
        line, _, font = page_font(bold).partition(b"\n")
        carried.data["fonts"].append({**json.loads(line), "at": carried.add(font), "size": len(font)})
    for variant in range(len(page_model.variants)):
        for call in _calls_shown(page_model):
            _add_overview(carried, handler, variant, call)
        _add_facts(carried, handler, variant)
    wanted = set(heads or ())
    maps = _maps(page_model, [n for n in range(len(page_model.page_sites)) if sites is None or n in sites])
    maps.sort(key=lambda one: ((one.site, one.head) not in wanted, one.variant, one.head, one.site, one.call))
    left = max(0, room - PAGE - int(len(carried.packed()) * BASE64))
    if sum(map_.whole for map_ in maps) > left:
        left -= _add_tops(carried, handler, maps, top, int(left * TOPS))
    for map_ in maps:
        asked_for = (map_.site, map_.head) in wanted
        if not asked_for and (heads is not None or map_.whole > left):
            continue
        left -= map_.whole
        codes = handler.packets.full(MapRequest(map_.variant, map_.site, map_.head, map_.call))
        at = carried.add(codes.tobytes())
        carried.data["parts"].append({**map_.part("full"), "at": at, "size": int(codes.size)})
    return carried


def _check(page_model: PageModel, heads: Sequence[tuple[int, int]] | None) -> None:
    for site, head in heads or ():
        if not 0 <= site < len(page_model.page_sites) or not 0 <= head < max(page_model.heads(site)):
            raise BadValue(f"--heads: there is no head {head} in layer {site}. Write LAYER.HEAD, both counted from 0.")


def _maps(page_model: PageModel, chosen: Sequence[int]) -> list[_Map]:
    """Every map of the chosen sites."""
    maps = []
    for variant in range(len(page_model.variants)):
        for site in sorted(set(chosen) & set(page_model.sites(variant))):
            observed_site = page_model.site(variant, site)
            for call in range(observed_site.calls):
                _, heads, queries, keys = observed_site.shape(call)
                if keys > LONGEST:
                    raise BadValue(f"seen: a file holds at most {LONGEST} keys, got {keys}. Use `regard view`.")
                maps += [_Map(variant, site, head, call, int(queries), int(keys)) for head in range(heads)]
    return maps


def _calls_shown(page_model: PageModel) -> list[int]:
    """The last call; for a generation every call, unless that is too large."""
    sites = [page_model.site(0, number) for number in page_model.sites(0)]
    steps = max(site.calls for site in sites)
    size = steps * sum(site.shape(0)[1] for site in sites) * THUMB**2
    return [-1, *range(steps)] if page_model.generation is not None and size <= STEPS else [-1]


def _add_overview(made: Payload, handler: RequestHandler, variant: int, call: int) -> None:
    line, _, codes = handler.packets.overview(variant, call).partition(b"\n")
    header = {"variant": variant, "call": call, **json.loads(line)}
    made.data["overview"].append({**header, "at": made.add(codes)})


def _add_facts(made: Payload, handler: RequestHandler, variant: int) -> None:
    try:
        _, content = handler.answer("facts", {"variant": str(variant)})
    except RegardError:  # the page works without facts
        return
    made.data["facts"].append({"variant": variant, "call": -1, **json.loads(content)})


def _add_tops(made: Payload, handler: RequestHandler, maps: Sequence[_Map], top: int, room: int) -> int:
    """Store the strongest keys of each row, of as many maps as there is room for; returns the bytes used."""
    used = 0
    for map_ in maps:
        if used + map_.strongest(top) > room:
            continue
        used += map_.strongest(top)
        keys, weights = handler.packets.strongest(map_.variant, map_.site, map_.call, top)
        pairs = _pairs(keys[map_.head], encode(weights[map_.head]))
        at = made.add(pairs.tobytes())
        made.data["parts"].append({**map_.part("top"), "top": top, "at": at, "size": int(pairs.size)})
    return used


def _pairs(keys: Any, codes: Codes) -> Codes:
    """(q, top, 3): the key as two bytes, little-endian, and the code; zeros where a row has fewer keys."""
    pairs = np.zeros((*keys.shape, 3), np.uint8)
    indices = np.maximum(keys, 0).astype("<u2")
    pairs[..., 0], pairs[..., 1] = indices & 255, indices >> 8
    pairs[..., 2] = np.where(keys >= 0, codes, 0)
    return pairs
