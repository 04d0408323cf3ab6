"""Weights as bytes for the page: thumbnails of every head, tiles, rows, columns.

No whole (q,k) array is held: weights are computed in blocks of rows, and each block is reduced to pixels at once. A
band (256 pixel rows across the whole map) is cached, so that scrolling sideways costs nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.viewer.cache import ByteCache
from regard_workbench.viewer.codes import Codes, Weights, encode, encode_difference
from regard_workbench.viewer.page_model import THUMB, TILE, PageModel

BLOCK = 1 << 22  # weights in memory at once
BAND = 1 << 25  # weights computed for one band; beyond it rows are sampled; about a second on two cores
WHOLE = 1 << 24  # weights of a map that is cached whole for requests of columns: 64 MiB
SAMPLED = 1  # flag of a tile
DEEPEST = 24  # the last zoom level: a pixel of 2^24 weights a side


@dataclass(frozen=True)
class MapRequest:
    """A head of a site in a call; `minus` is the variant to subtract."""

    variant: int = 0
    site: int = 0
    head: int = 0
    call: int = -1
    minus: int | None = None


class Packets:
    """The weights of a page model as bytes."""

    def __init__(self, page_model: PageModel, cache: ByteCache | None = None) -> None:
        self.page_model, self.cache = page_model, cache or ByteCache()

    def shape(self, request: MapRequest) -> tuple[int, int]:
        """Queries and keys of the call; raises for a head or pair of maps that does not exist."""
        sizes = [self._site(request, variant).shape(self.call(request, variant)) for variant in _variants(request)]
        if len({tuple(size[2:]) for size in sizes}) > 1:
            words = " and ".join(f"{size[2]} × {size[3]}" for size in sizes)
            raise BadValue(f"minus: the two maps have different sizes ({words}). Compare the same input.")
        for variant, size in zip(_variants(request), sizes, strict=True):
            if request.head >= size[1]:
                label = self.page_model.page_sites[request.site].label
                raise BadValue(
                    f"head: there is no head {request.head} in {label} of {self.page_model.variants[variant].name}. "
                    f"Its heads are 0 to {size[1] - 1}."
                )
        return int(sizes[0][2]), int(sizes[0][3])

    def call(self, request: MapRequest, variant: int | None = None) -> int:
        """The index of the call. A site with fewer calls (an encoder, while a decoder writes) stays at its last."""
        count = int(self._site(request, request.variant if variant is None else variant).calls)
        return count - 1 if request.call < 0 else min(request.call, count - 1)

    def shown(self, request: MapRequest) -> int | None:
        """The call to show; None, all calls joined, where a text was generated step by step."""
        steps = self.page_model.generation is not None and self._site(request, request.variant).calls > 1
        return None if steps and request.call < 0 else self.call(request)

    def tile(self, request: MapRequest, level: int, x: int, y: int) -> bytes:
        """A tile of pixels, each the largest of 2^level × 2^level weights; with a header of eight bytes."""
        queries, keys = self.shape(request)
        size = 1 << level
        height, width = -(-queries // size), -(-keys // size)
        if y * TILE >= max(height, 1) or x * TILE >= max(width, 1):
            raise BadValue(f"x, y: there is no tile {x}, {y} on level {level}.")
        question = ("band", request.variant, request.minus, request.site, request.head, self.call(request), level, y)
        band: tuple[Codes, bool] = self.cache.get(
            question, lambda: self._band(request, level, y, queries, keys), lambda answer: answer[0].nbytes + 200
        )
        codes, sampled = band
        tile = codes[:, x * TILE : (x + 1) * TILE]
        flags = SAMPLED if sampled else 0
        return struct.pack("<HHB3x", tile.shape[1], tile.shape[0], flags) + tile.tobytes()

    def _band(self, request: MapRequest, level: int, y: int, queries: int, keys: int) -> tuple[Codes, bool]:
        """Codes of the pixel rows from y·256 of a level, across the whole map; and whether rows were sampled."""
        size = 1 << level
        first, last = y * TILE * size, min(queries, (y + 1) * TILE * size)
        per_pixel = min(size, max(1, BAND // max(1, keys * -(-(last - first) // size))))  # rows computed for a pixel
        difference = request.minus is not None
        codes = np.zeros((-(-(last - first) // size), -(-keys // size)), np.uint8)
        step = max(1, BLOCK // max(1, keys * per_pixel))  # pixel rows in a block
        for top in range(0, len(codes), step):
            rows = [
                row
                for pixel in range(top, min(top + step, len(codes)))
                for row in _spread(first + pixel * size, min(last, first + (pixel + 1) * size), per_pixel)
            ]
            weights = self._rows(request, rows)
            pooled = _strongest(_columns(weights, size, difference), per_pixel, difference)
            codes[top : top + len(pooled)] = encode_difference(pooled) if difference else encode(pooled)
        return codes, per_pixel < size

    def row(self, request: MapRequest, row: int) -> Weights:
        """The exact weights of one query."""
        queries, _ = self.shape(request)
        _inside("row", row, queries)
        weights: Weights = self._rows(request, [row])[0]
        return weights

    def column(self, request: MapRequest, key: int) -> Weights:
        """The exact weights of one key, from every query."""
        _, keys = self.shape(request)
        _inside("key", key, keys)
        columns = [self._column(replace(request, variant=variant, minus=None), key) for variant in _variants(request)]
        return columns[0] if len(columns) == 1 else columns[0] - columns[1]

    def _column(self, request: MapRequest, key: int) -> Weights:
        """One column; of a small map all are computed at once, since the pointer usually moves to the next key."""
        queries, keys = self.shape(request)
        call = self.call(request)
        if queries * keys > WHOLE:
            with torch.no_grad():
                return _numbers(
                    self._site(request, request.variant).columns_of([key], heads=[request.head], call=call)
                )[:, 0]
        question = ("whole", request.variant, request.site, request.head, call)
        weights: Weights = self.cache.get(
            question, lambda: self._whole(request, queries, keys), lambda map_: map_.nbytes
        )
        return weights[:, key]

    def _whole(self, request: MapRequest, queries: int, keys: int) -> Weights:
        blocks = [self._rows(request, rows) for rows in _blocks(queries, max(1, BLOCK // max(1, keys)))]
        return np.concatenate(blocks) if blocks else np.zeros((0, keys), np.float32)

    def top(self, request: MapRequest, top: int) -> dict[str, Any]:
        """The strongest keys of each row and their weights; −1 where a row has fewer."""
        self.shape(request)
        keys, weights = self.strongest(request.variant, request.site, self.call(request), top)
        rounded = np.round(weights[request.head].astype(np.float64), 7)
        return {"keys": keys[request.head].tolist(), "weights": rounded.tolist()}

    def strongest(self, variant: int, site: int, call: int, top: int) -> tuple[NDArray[np.int64], Weights]:
        """Keys and weights (heads, q, top) of a site, strongest first."""
        question = ("top", variant, site, call, top)

        def make() -> tuple[NDArray[np.int64], Weights]:
            with torch.no_grad():
                summary = self.page_model.site(variant, site).summary(top=top, call=call)
            return summary.top_keys[0].cpu().numpy(), summary.top_weights[0].float().cpu().numpy()

        answer: tuple[NDArray[np.int64], Weights] = self.cache.get(
            question, make, lambda answer: answer[0].nbytes + answer[1].nbytes
        )
        return answer

    def lines(self, request: MapRequest, top: int) -> bytes:
        """Heads, queries and top as three numbers, then a key of four bytes and a weight of four for each."""
        keys, weights = self.strongest(request.variant, request.site, self.call(request), top)
        pairs = np.empty((*keys.shape, 2), "<f4")
        pairs[..., 0], pairs[..., 1] = keys, np.where(keys >= 0, weights, 0)  # keys are exact up to 2^24
        return struct.pack("<III", *keys.shape) + pairs.tobytes()

    def overview(self, variant: int, call: int) -> bytes:
        """A thumbnail of every head: a line of JSON, then 48 × 48 codes for each."""
        heads: list[list[int]] = []
        pictures: list[bytes] = []
        sampled = False
        for number in self.page_model.sites(variant):
            site = self.page_model.site(variant, number)
            which = self.shown(MapRequest(variant, number, call=call))
            small = self.thumbs(variant, number, which)
            queries = site.shape(which)[2] if which is not None else sum(site.shape(n)[2] for n in range(site.calls))
            sampled |= queries > THUMB
            heads += [[number, head] for head in range(len(small))]
            pictures.append(small.tobytes())
        line = json.dumps({"size": THUMB, "sampled": bool(sampled), "heads": heads})
        return line.encode() + b"\n" + b"".join(pictures)

    def thumbs(self, variant: int, site: int, call: int | None) -> Codes:
        """(heads, 48, 48): the largest weights of each head; a smaller map is enlarged. call None: all calls joined."""

        def make() -> Codes:
            observed_site = self.page_model.site(variant, site)
            _, heads, queries, keys = observed_site.shape(-1 if call is None else call)
            if not queries or not keys:
                return np.zeros((heads, THUMB, THUMB), np.uint8)
            with torch.no_grad():
                weights = (
                    _joined(observed_site)
                    if call is None
                    else observed_site.pooled(min(queries, THUMB), min(keys, THUMB), call=call)
                )
            codes = encode(np.asarray(weights.float().cpu().numpy(), np.float32))
            down, across = (np.arange(THUMB) * side // THUMB for side in codes.shape[1:])
            return np.ascontiguousarray(codes[:, down][:, :, across])

        answer: Codes = self.cache.get(("thumbs", variant, site, call), make, lambda codes: codes.nbytes)
        return answer

    def full(self, request: MapRequest) -> Codes:
        """Every weight of a head as a code, (q,k)."""
        queries, keys = self.shape(request)
        return encode(self._whole(request, queries, keys))

    def _rows(self, request: MapRequest, rows: Sequence[int]) -> Weights:
        with torch.no_grad():
            per_variant = [
                _numbers(
                    self._site(request, variant).weights(
                        rows=rows, heads=[request.head], call=self.call(request, variant)
                    )
                )
                for variant in _variants(request)
            ]
        return per_variant[0] if len(per_variant) == 1 else per_variant[0] - per_variant[1]

    def _site(self, request: MapRequest, variant: int) -> Any:
        for name, number, count in (
            ("variant", variant, len(self.page_model.variants)),
            ("site", request.site, len(self.page_model.page_sites)),
        ):
            _inside(name, number, count)
        return self.page_model.site(variant, request.site)


def _joined(site: Any) -> torch.Tensor:
    """(heads, ≤ 48, ≤ 48) of a prompt and its decoding steps as one map; of many rows a sample, evenly spaced."""
    from regard.observation.analysis.sites import JoinedCalls, spread

    joined = JoinedCalls(site, site.calls)
    weights = joined.weights(spread(joined.shape()[2], 2 * THUMB).tolist())[0].float()
    rows, keys = weights.shape[1:]
    return torch.nn.functional.adaptive_max_pool2d(weights, (min(rows, THUMB), min(keys, THUMB)))


def _inside(name: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise BadValue(f"{name}: expected a number from 0 to {count - 1}, got {number}.")


def _variants(request: MapRequest) -> tuple[int, ...]:
    return (request.variant,) if request.minus is None else (request.variant, request.minus)


def _numbers(weights: torch.Tensor) -> Weights:
    """The first example's only head as float32 on the CPU."""
    array: Weights = weights[0, 0].detach().float().cpu().numpy()
    return array


def _blocks(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(count, start + size))


def _spread(first: int, last: int, count: int) -> list[int]:
    """`count` rows of a pixel, evenly spaced; the last one is repeated where the pixel is cut off."""
    span = last - first
    return [first + (number * span // count if span > count else min(number, span - 1)) for number in range(count)]


def _columns(weights: Weights, size: int, signed: bool) -> Weights:
    """The largest of each `size` neighbouring keys; the last group may be smaller."""
    if size == 1 or not weights.shape[1]:
        return weights
    starts = np.arange(0, weights.shape[1], size)
    full = weights.shape[1] // size * size
    if not signed and full == weights.shape[1]:
        largest: Weights = weights.reshape(len(weights), -1, size).max(2)
        return largest
    return _reduced(weights, starts, 1, signed)


def _strongest(weights: Weights, each: int, signed: bool) -> Weights:
    """The largest of each `each` rows."""
    return weights if each == 1 else _reduced(weights, np.arange(0, len(weights), each), 0, signed)


def _reduced(weights: Weights, starts: NDArray[np.int64], axis: int, signed: bool) -> Weights:
    """Groups that begin at `starts`, each by its largest value, or by the value of largest magnitude."""
    most: Weights = np.maximum.reduceat(weights, starts, axis=axis)
    if not signed:
        return most
    least: Weights = np.minimum.reduceat(weights, starts, axis=axis)
    return np.where(-least > most, least, most)
