"""The interface that analyses need of a site, and reading its rows without a whole map in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import BadValue
from regard.support.arguments import whole_number

Rows = Sequence[int] | slice | Tensor | None
# Names of cross-attention in libraries; torch's decoder layer calls it multihead_attn.
CROSSING = re.compile(r"cross|encoder_?attn|enc_?dec|context_?att|multihead_attn", re.IGNORECASE)
BLOCK = 1 << 22  # weights in memory at once


class SiteLike(Protocol):
    """The part of `Site` that is used here."""

    @property
    def name(self) -> str:
        """The path of its module."""

    def shape(self, call: int = -1) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""

    def weights(self, rows: Rows = None, heads: Rows = None, call: int = -1) -> Tensor:
        """Exact weights of chosen rows and heads, (b, heads, rows, k)."""


@runtime_checkable
class SeenLike(Protocol):
    """The part of `Seen` that is used here."""

    def names(self) -> list[str]:
        """In the order of their first call."""

    def __getitem__(self, name: str) -> SiteLike:
        """One of them."""


class JoinedCalls:
    """A prompt and its decoding steps as one map: row i holds the weights of position i.

    Keys that a later step added are 0 in earlier rows.
    """

    def __init__(self, site: SiteLike, calls: int) -> None:
        self.site, self.name = site, site.name
        self.rows, self.columns = getattr(site, "rows", "position"), getattr(site, "columns", "source")
        self._shapes = [site.shape(call) for call in range(calls)]
        if not self._shapes:
            raise BadValue(f"calls: expected a site that was called, but {site.name} was not.")
        if len({shape[:2] for shape in self._shapes}) > 1:
            raise BadValue(
                f"site: expected calls of one batch and one number of heads to join, got {self._shapes}. "
                "Choose a single call instead."
            )
        self._starts = [0]
        for shape in self._shapes:
            self._starts.append(self._starts[-1] + shape[2])

    def shape(self, call: int = -1) -> tuple[int, int, int, int]:
        """Batch, heads, the queries of all calls, the keys of the longest call."""
        batch, heads, _, _ = self._shapes[0]
        return batch, heads, self._starts[-1], max(shape[3] for shape in self._shapes)

    def weights(self, rows: Rows = None, heads: Rows = None, call: int = -1) -> Tensor:
        """Exact weights, each row from its own call."""
        _, _, count, keys = self.shape()
        wanted = chosen(rows, count)
        row_blocks = [self.site.weights([], heads, 0)]
        row_blocks[0] = pad(row_blocks[0], (0, keys - row_blocks[0].shape[3]))
        indices = [wanted[:0]]
        for number, (start, stop) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            places = torch.nonzero((wanted >= start) & (wanted < stop)).flatten()
            if len(places):
                weights = self.site.weights((wanted[places] - start).tolist(), heads, number)
                row_blocks.append(pad(weights, (0, keys - weights.shape[3])))
                indices.append(places)
        order = torch.cat(indices).argsort()
        return torch.cat(row_blocks, 2)[:, :, order]


def crosses(site: SiteLike) -> bool:
    """Whether queries and keys are different sequences, by the site's sides, else by its name."""
    sides = {getattr(site, "rows", "position"), getattr(site, "columns", "source")}
    return bool({"slot", "memory"} & sides) or CROSSING.search(site.name) is not None


def at(site: SiteLike, call: int | None) -> tuple[SiteLike, int]:
    """A site and one of its calls; for None all of its calls joined to one."""
    if call is None:
        return JoinedCalls(site, getattr(site, "calls", 1)), -1
    return site, call


def chosen(rows: Rows, count: int) -> Tensor:
    """Rows as indices from 0, (rows,); those from the end may be negative, as in Python."""
    if rows is None:
        return torch.arange(count)
    if isinstance(rows, slice):
        return torch.arange(count)[rows]
    indices = torch.as_tensor(rows, dtype=torch.int64).flatten().cpu()
    if len(indices) and (int(indices.max()) >= count or int(indices.min()) < -count):
        raise BadValue(f"rows: expected numbers from {-count} to {count - 1}, got {indices.tolist()[:8]}.")
    return indices % max(count, 1)


def spread(count: int, most: int) -> Tensor:
    """All numbers below `count`, or `most` of them, evenly spaced from the first to the last."""
    if count <= most:
        return torch.arange(count)
    spaced: Tensor = torch.linspace(0, count - 1, most, dtype=torch.float64).round().long().unique()
    return spaced


def blocks(
    site: SiteLike, rows: Tensor, call: int = -1, batch: int | None = 0, beside: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """(rows, weights (heads, rows, k)) in blocks, so that memory stays linear; for batch None all examples.

    `beside`: how many arrays (rows, k) the caller allocates per block.
    """
    batches, heads, _, keys = site.shape(call)
    if batch is not None:
        batch = whole_number("batch", batch)
        if not -batches <= batch < batches:
            raise BadValue(f"batch: expected a number below {batches}, which {site.name} saw, got {batch}.")
    step = max(1, BLOCK // max(1, max(batches * heads, beside) * keys))
    for block in rows.split(step):
        weights = site.weights(block.tolist(), None, call).detach().float().cpu()
        yield block, weights if batch is None else weights[batch]
