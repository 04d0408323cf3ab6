"""What attention over a shared sequence costs each rank: bytes and floating-point operations of one layer.

`ring` and `heads` take the same schedule as the computation itself, so they hold for any mask, layout and number of
ranks, without starting a process. docs/scaling.md has the formulas; tests compare both with traffic that was counted.

>>> from regard import masks
>>> from regard.parallel import costs
>>> shape = costs.Shape(length=10_485_760, heads=32, groups=8, width=128)
>>> found = costs.ring(shape, masks.causal(), ranks=1024, layout="zigzag")
>>> float(found.flops.max() / found.flops.min())
1.0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.masks import Mask
from regard.parallel import schedule
from regard.parallel.layout import Layout
from regard.support.arguments import whole_number
from regard.values.grid import Sizes, full_grid
from regard.values.value import rebuild

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention: `width` is that of a key, `value_width` that of a value (None: the same)."""

    length: int
    heads: int
    groups: int
    width: int
    value_width: int | None = None
    batch: int = 1
    itemsize: int = 2  # bytes of a number; gradients of keys travel in at least four

    def __post_init__(self) -> None:
        for name in ("length", "heads", "groups", "width", "batch", "itemsize"):
            whole_number(name, getattr(self, name), 1)
        if self.heads % self.groups:
            raise BadValue(f"groups: expected a divisor of the {self.heads} heads, got {self.groups}.")

    @property
    def values(self) -> int:
        """The width of a value."""
        return self.width if self.value_width is None else self.value_width

    @property
    def per_key(self) -> int:
        """Numbers of one position's keys and values."""
        return self.batch * self.groups * (self.width + self.values)

    @property
    def per_pair(self) -> int:
        """Floating-point operations of one pair in a forward pass: two products, multiply and add counted as two."""
        return 2 * self.batch * self.heads * (self.width + self.values)

    @property
    def per_pair_backward(self) -> int:
        """The same of a backward pass in one process: three products as wide as a key, two as wide as a value."""
        return 2 * self.batch * self.heads * (3 * self.width + 2 * self.values)


@dataclass(frozen=True)
class Costs:
    """Of each rank, (ranks,): bytes sent and received, and floating-point operations, in both passes together."""

    forward_sent: Counts
    forward_received: Counts
    backward_sent: Counts
    backward_received: Counts
    flops: NDArray[np.float64]

    @property
    def received(self) -> Counts:
        """Bytes received in both passes."""
        return self.forward_received + self.backward_received


def ring(
    shape: Shape, mask: Mask | None, ranks: int, layout: str | Layout = "zigzag", pairs: Counts | None = None
) -> Costs:
    """The costs of `exchange="ring"`. `pairs`: the visible pairs of each rank's queries.

    By default they are counted; for masks that depend on more than the distance they are estimated from blocks, of
    which partly visible ones count half.
    """
    chosen = _layout(shape, mask, ranks, layout)
    sizes = (shape.batch, shape.heads, shape.length, shape.length)
    plan = schedule.make(mask, sizes, chosen, chosen)
    received, sent = plan.keys_received().numpy(), plan.keys_sent().numpy()
    rows, gradients = shape.per_key * shape.itemsize, shape.per_key * max(4, shape.itemsize)
    visible_pairs = _pairs(shape, mask, chosen) if pairs is None else np.asarray(pairs, dtype=np.float64)
    flops = visible_pairs * (shape.per_pair + shape.per_pair_backward)
    return Costs(
        sent * rows, received * rows, sent * rows + received * gradients, received * rows + sent * gradients, flops
    )


def heads(
    shape: Shape, mask: Mask | None, ranks: int, layout: str | Layout = "zigzag", pairs: int | None = None
) -> Costs:
    """The costs of `exchange="heads"`. `pairs`: the visible pairs of all queries; by default as in `ring`."""
    chosen = _layout(shape, mask, ranks, layout)
    if shape.heads % ranks:
        raise BadValue(f"ranks: expected a divisor of the {shape.heads} heads, got {ranks}.")
    lengths = np.array([chosen.local_length(rank) for rank in range(ranks)], dtype=np.int64)
    remote = shape.length - lengths
    copied = lcm(shape.groups, ranks)
    rows = shape.batch * (shape.heads * shape.width + copied * (shape.width + shape.values)) // ranks * shape.itemsize
    results = shape.batch * shape.heads * shape.values // ranks * shape.itemsize
    sent = lengths * (ranks - 1) * rows + remote * results
    received = remote * rows + lengths * (ranks - 1) * results
    total = float(_pairs(shape, mask, chosen).sum()) if pairs is None else float(pairs)
    flops = total * (shape.per_pair + shape.per_pair_backward) / ranks
    return Costs(sent, received, received, sent, np.full(ranks, flops))


def _layout(shape: Shape, mask: Mask | None, ranks: int, layout: str | Layout) -> Layout:
    if isinstance(layout, Layout):
        return layout
    return schedule.choose(layout, shape.length, ranks, mask, shape.batch, shape.heads)


def _pairs(shape: Shape, mask: Mask | None, layout: Layout) -> NDArray[np.float64]:
    """The visible pairs of each rank's queries in a head, the mean of all: exact where distance and head decide."""
    sizes = (shape.batch, shape.heads, shape.length, shape.length)
    if mask is None or (mask.by_distance and not mask.tensors):
        before = _seen_before(None if mask is None else mask.spec, sizes)
        spans = [[layout.span(chunk) for chunk in chunks] for chunks in layout.chunks]
        rank_pairs = [
            sum(float(before[span.stop] - before[span.start]) for span in chunk_spans) for chunk_spans in spans
        ]
        return np.array(rank_pairs, dtype=np.float64)
    work = schedule.estimated_work(mask, sizes, layout.count)
    return torch.stack([work[list(chunks)].sum() for chunks in layout.chunks]).numpy()


@lru_cache(maxsize=4)
def _seen_before(spec: str | None, sizes: Sizes) -> NDArray[np.float64]:
    """How many keys all queries before each one see together, (length + 1,), under a mask of distances."""
    length = sizes[2]
    if spec is None:
        return np.arange(length + 1, dtype=np.float64) * length
    mask = rebuild(spec, ())
    assert isinstance(mask, Mask)
    # The first and the last query know every distance from −(length − 1) on. Query i reaches from −i to length − 1 − i.
    grid = full_grid(sizes, "cpu")
    last, first = (
        mask.tile(grid.part(rows=slice(row, row + 1))).double().mean((0, 1))[0].numpy() for row in (length - 1, 0)
    )
    up_to = np.concatenate([[0], np.cumsum(np.concatenate([last, first[1:]]))])
    return np.concatenate([[0], np.cumsum(up_to[length:][::-1] - up_to[:length][::-1])])
