"""Long walks cut into pieces, whose results are joined in a fixed order.

Under global tokens a few blocks visit everything and all others only their window: on a GPU the few would run on alone.
Walks are cut only where one of them would take longer than everything else together (`cut_long`). Each piece writes
its sums in float32 to a slot of its own, and one more kernel joins the slots of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.implementations.triton.dot.forward import finish_rows
from regard.implementations.triton.launch.block_sizes import SMALL
from regard.implementations.triton.launch.device_functions import store_rows
from regard.implementations.triton.launch.launching import Launch

SHORTEST = 2 if SMALL else 16  # steps of a piece, at least
PATIENCE = 2  # a walk is cut where it is longer than one part in so many of what each program has to do in all
_ROWS = 16  # that a program joins


class Pieces(NamedTuple):
    """Which program takes which steps of which block."""

    pieces: list[tuple[int, int, int, int]]  # block, first step, the one after the last, slot; −1: the whole block
    splits: list[tuple[int, int, int]]  # of each block that is cut: the block, its first slot, how many slots

    @property
    def slots(self) -> int:
        """How many pieces have a place for their result."""
        return sum(count for _, _, count in self.splits)


def cut_long(steps: list[int], lines: int, processors: int) -> Pieces | None:
    """Cut the walks that are much longer than the others, for `lines` heads; None if none holds up the rest.

    Longest first, so that a walk shorter than half of what each program has to do in all ends in time.
    """
    usual = sorted(steps)[len(steps) // 2]
    limit = max(SHORTEST, usual + usual // 2)
    share = sum(steps) * lines // (2 * processors)  # about two programs run on a processor at a time
    if max(steps) <= max(2 * limit, share // PATIENCE):
        return None
    pieces: list[tuple[int, int, int, int]] = []
    splits: list[tuple[int, int, int]] = []
    slots = 0
    for block, count in enumerate(steps):
        if count <= limit:
            pieces.append((block, 0, count, -1))
            continue
        many = -(-count // limit)
        reach = -(-count // many)
        many = -(-count // reach)
        splits.append((block, slots, many))
        for number in range(many):
            pieces.append((block, number * reach, min(count, (number + 1) * reach), slots + number))
        slots += many
    pieces.sort(key=lambda one: one[1] - one[2])
    return Pieces(pieces, splits)


class CutLaunch:
    """A launch of pieces, followed by those that join them; called like a launch of whole walks."""

    def __init__(
        self, walk: Launch, joins: Sequence[tuple[Launch, tuple[int, ...]]], numbers: int, device: torch.device
    ) -> None:
        """`joins`: with which of the tensors each is called, after the parts, which are so many `numbers`."""
        self.walk, self.joins, self.numbers, self.device = walk, joins, numbers, device

    @property
    def ready(self) -> bool:
        """As that of `Launch`."""
        return self.walk.ready and all(join.ready for join, _ in self.joins)

    def __call__(self, *tensors: Any) -> None:
        """Launch all of them with these tensors."""
        parts = self._parts()
        self.walk(*tensors, parts)
        for join, places in self.joins:
            join(parts, *[tensors[place] for place in places])

    def at(self, stream: int, given: Sequence[Any]) -> None:
        """As that of `Launch`."""
        parts = self._parts()
        first = parts.data_ptr()
        self.walk.at(stream, (*given, first))
        for join, places in self.joins:
            join.at(stream, (first, *[given[place] for place in places]))

    def _parts(self) -> Tensor:
        return torch.empty(self.numbers, dtype=torch.float32, device=self.device)


def join_grid(splits: Tensor, lines: int, block: int) -> tuple[int, int, int]:
    """One program for some rows of each block that was cut, in each line."""
    return splits.shape[0] * lines * (block // _ROWS), 1, 1


def join_options(splits: Tensor, lines: int, block: int) -> dict[str, Any]:
    """The arguments that both kernels below take."""
    return {"SPLITS": splits, "lines": lines, "BLOCK": block, "PART": _ROWS, "num_warps": 4}


@triton.jit(do_not_specialize=["heads", "q_len", "lines", "slots"])
def join_rows(
    PARTS, OUT, LSE, SINK, SPLITS, OUT_STRIDES, heads, q_len, lines, slots, SINKS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
):
    """Join what the pieces of a block of queries found: as if its walk had gone on."""
    SUBS: tl.constexpr = BLOCK // PART
    sub, rest = tl.program_id(0) % SUBS, tl.program_id(0) // SUBS
    line, SPLITS = rest % lines, SPLITS + rest // lines * 3
    block, first, count = tl.load(SPLITS), tl.load(SPLITS + 1), tl.load(SPLITS + 2)
    inner, across = sub * PART + tl.arange(0, PART), tl.arange(0, BLOCK_V)
    STATS = PARTS + (slots * lines).to(tl.int64) * (BLOCK * BLOCK_V)
    largest = tl.full([PART], float("-inf"), tl.float32)
    total = tl.zeros([PART], tl.float32)
    output = tl.zeros([PART, BLOCK_V], tl.float32)
    for slot in tl.range(first, first + count):
        place = slot * lines + line
        mine = tl.load(STATS + place * (2 * BLOCK) + inner)
        highest = tl.maximum(largest, mine)
        steady = tl.where(highest == float("-inf"), 0.0, highest)
        fade, weight = tl.exp2(largest - steady), tl.exp2(mine - steady)
        total = total * fade + tl.load(STATS + place * (2 * BLOCK) + BLOCK + inner) * weight
        at = place.to(tl.int64) * BLOCK + inner
        found = tl.load(PARTS + at[:, None] * BLOCK_V + across[None, :])
        output = output * fade[:, None] + found * weight[:, None]
        largest = highest
    sink = 0.0
    if SINKS:
        sink = tl.load(SINK + line % heads).to(tl.float32)
    output, lse = finish_rows(largest, total, output, sink, SINKS, OUT.dtype.element_ty == tl.float32)
    rows = block * BLOCK + inner
    store_rows(OUT, OUT_STRIDES, line // heads, line % heads, rows, across, output, q_len, WIDTH)
    tl.store(LSE + line.to(tl.int64) * q_len + rows, lse, mask=rows < q_len)


@triton.jit(do_not_specialize=["heads", "length", "lines", "before"])
def join_sums(
    PARTS, OUT, SPLITS, OUT_STRIDES, heads, length, lines, before, WIDTH: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr, PART: tl.constexpr,
):
    """Add up the gradients that the pieces of a block found; `before` numbers of others precede them."""
    SUBS: tl.constexpr = BLOCK // PART
    sub, rest = tl.program_id(0) % SUBS, tl.program_id(0) // SUBS
    line, SPLITS = rest % lines, SPLITS + rest // lines * 3
    block, first, count = tl.load(SPLITS), tl.load(SPLITS + 1), tl.load(SPLITS + 2)
    inner, across = sub * PART + tl.arange(0, PART), tl.arange(0, BLOCK_V)
    PARTS += before
    output = tl.zeros([PART, BLOCK_V], tl.float32)
    for slot in tl.range(first, first + count):
        at = (slot * lines + line).to(tl.int64) * BLOCK + inner
        output += tl.load(PARTS + at[:, None] * BLOCK_V + across[None, :])
    rows = block * BLOCK + inner
    store_rows(OUT, OUT_STRIDES, line // heads, line % heads, rows, across, output, length, WIDTH)
