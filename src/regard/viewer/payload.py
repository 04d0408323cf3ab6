"""What a page without a server carries: the scene, an overview, and for each head as much as there is room for.

Small inputs are kept whole. Of larger ones every head keeps its strongest keys of each row; the heads that were asked
for (or, where nobody asked, the first of each layer as long as there is room) are kept whole besides.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.errors import BadValue, RegardError
from regard.viewer.answers import Answers
from regard.viewer.codes import encode
from regard.viewer.packets import Asked
from regard.viewer.stage import Stage

TOP = 8
LONGEST = 65536  # keys: a key is two bytes
ROOM = 5_000_000  # bytes of a page
RATIO = 4 / 3  # base64


@dataclass
class Payload:
    """JSON data, and the bytes its offsets point into."""

    data: dict[str, Any]
    content: bytearray = field(default_factory=bytearray)

    def add(self, content: bytes) -> int:
        """Put bytes behind those that are there; where they begin."""
        at = len(self.content)
        self.content += content
        return at

    def packed(self) -> bytes:
        """The bytes, deflated."""
        return zlib.compress(bytes(self.content), 9)


def payload(
    stage: Stage,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    sites: Sequence[int] | None = None,
    room: int = ROOM,
    top: int = TOP,
) -> Payload:
    """All that a stage can tell in about `room` bytes.

    heads: (site, head) pairs to keep whole. sites: keep only these; every one by default.
    """
    answers = Answers(stage)
    chosen = [n for n in range(len(stage.places)) if sites is None or n in sites]
    made = Payload({"scene": {**stage.scene(), "embedded": True}, "overview": [], "facts": [], "parts": []})
    wholes = _wholes(stage, chosen)
    everything = sum(size for *_, size in wholes)
    everywhere = (
        everything * RATIO <= room * 0.6
    )  # codes shrink at least by a bit; the rest is script and labels
    for variant in range(len(stage.variants)):
        for call in _calls_shown(stage):
            _add_overview(made, answers, variant, call)
        _add_facts(made, answers, variant)
    if not everywhere:
        _add_tops(made, answers, chosen, top)
    left = int(room / RATIO * 0.8) - len(made.packed())
    order = sorted(wholes, key=lambda one: _urgency(one, heads))
    for variant, site, head, call, size in order:
        wanted = heads is not None and (site, head) in heads
        if not everywhere and not wanted and (heads is not None or size > left):
            continue
        left -= size
        codes = answers.packets.full(Asked(variant, site, head, call))
        part = {"kind": "full", "variant": variant, "site": site, "head": head, "call": call}
        made.data["parts"].append({**part, "at": made.add(codes.tobytes()), "size": int(codes.size)})
    _check(stage, heads)
    return made


def _check(stage: Stage, heads: Sequence[tuple[int, int]] | None) -> None:
    for site, head in heads or ():
        if not 0 <= site < len(stage.places) or not 0 <= head < stage.site(0, site).shape(0)[1]:
            raise BadValue(
                f"--heads: there is no head {head + 1} in layer {site + 1}. Write LAYER.HEAD, from 1."
            )


def _wholes(stage: Stage, chosen: Sequence[int]) -> list[tuple[int, int, int, int, int]]:
    """Every map there is: variant, site, head, call, and its size."""
    found = []
    for variant, site in _existing(stage, chosen):
        own = stage.site(variant, site)
        for call in range(own.calls):
            _, heads, queries, keys = own.shape(call)
            if keys > LONGEST:
                raise BadValue(
                    f"seen: a page of its own holds at most {LONGEST} keys, got {keys}. Use `regard view`."
                )
            found += [(variant, site, head, call, int(queries * keys)) for head in range(heads)]
    return found


def _existing(stage: Stage, chosen: Sequence[int]) -> Iterator[tuple[int, int]]:
    for variant in range(len(stage.variants)):
        for site in chosen:
            try:
                stage.site(variant, site)
            except RegardError:  # another model may lack a layer
                continue
            yield variant, site


def _urgency(one: tuple[int, int, int, int, int], heads: Sequence[tuple[int, int]] | None) -> tuple[Any, ...]:
    variant, site, head, call, _ = one
    return (heads is None or (site, head) not in heads, variant, head, site, call)


def _calls_shown(stage: Stage) -> list[int]:
    """The last call; every one where a generation is stepped through, unless there are very many."""
    steps = max(stage.site(0, n).calls for n in range(len(stage.places)))
    return [-1, *range(steps)] if stage.generation is not None and steps <= 64 else [-1]


def _add_overview(made: Payload, answers: Answers, variant: int, call: int) -> None:
    line, _, codes = answers.packets.overview(variant, call).partition(b"\n")
    header = {"variant": variant, "call": call, **json.loads(line)}
    made.data["overview"].append({**header, "at": made.add(codes)})


def _add_facts(made: Payload, answers: Answers, variant: int) -> None:
    try:
        _, content = answers.answer("facts", {"variant": str(variant)})
    except RegardError:  # a page without them is still a page
        return
    made.data["facts"].append({"variant": variant, "call": -1, **json.loads(content)})


def _add_tops(made: Payload, answers: Answers, chosen: Sequence[int], top: int) -> None:
    for variant, site in _existing(answers.stage, chosen):
        for call in range(answers.stage.site(variant, site).calls):
            keys, weights = answers.packets.strongest(variant, site, call, top)
            pairs = np.zeros((*keys.shape, 3), np.uint8)
            places = np.maximum(keys, 0).astype("<u2")
            pairs[..., 0], pairs[..., 1] = places & 255, places >> 8
            pairs[..., 2] = np.where(keys >= 0, encode(weights), 0)
            for head in range(len(keys)):
                part = {
                    "kind": "top",
                    "variant": variant,
                    "site": site,
                    "head": head,
                    "call": call,
                    "top": top,
                }
                at = made.add(pairs[head].tobytes())
                made.data["parts"].append({**part, "at": at, "size": int(pairs[head].size)})
