"""Every mask of the algebra over one sequence of 37 positions, with the same rule written out by hand."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from regard import masks
from regard.masks import Mask
from tests import oracle
from tests.contracts.user_masks import HeadWindows, Runs

LENGTH, BATCH, HEADS, GROUPS, WIDTH, VALUE_WIDTH = 37, 2, 4, 2, 6, 5
_random = torch.Generator().manual_seed(7)
KEEP = torch.rand(BATCH, LENGTH, generator=_random) > 0.3
QUERY_KEEP = torch.rand(BATCH, LENGTH, generator=_random) > 0.2
IDS = torch.randint(-1, 4, (BATCH, LENGTH), generator=_random).sort(1).values
KEPT, QUERIES_KEPT, DOCUMENTS = KEEP.tolist(), QUERY_KEEP.tolist(), IDS.tolist()  # read faster in loops
DENSE = torch.rand(1, HEADS, LENGTH, LENGTH, generator=_random) > 0.5
PAIRS = DENSE[0].tolist()
PREFIX, KEYS, QUERIES = (3, 11), (20, 37), (37, 9)
OFFSETS = (0, 5, 19, 33)


def document(position):
    return next((n for n in range(3) if OFFSETS[n] <= position < OFFSETS[n + 1]), -1)


class OddSum(Mask):
    """A user's own mask: it knows no blocks, and reads the indices of the whole sequence."""

    name: ClassVar[str] = "odd-sum"
    modulus: int

    def visible(self, grid):
        return (grid.row * 3 + grid.column) % self.modulus != 0


# name: mask, and whether query i of head h in batch entry b sees key j
CASES = {
    "none": (None, lambda b, h, i, j: True),
    "causal": (masks.causal(), lambda b, h, i, j: j <= i),
    "causal-offset": (masks.causal(offset=torch.tensor([-3, 4])), lambda b, h, i, j: j <= i + (-3, 4)[b]),
    "window": (masks.window(5, 2), lambda b, h, i, j: i - 5 <= j <= i + 2),
    "causal-window": (masks.causal() & masks.window(4), lambda b, h, i, j: i - 4 <= j <= i),
    "prefix": (masks.causal() | masks.prefix(torch.tensor(PREFIX)), lambda b, h, i, j: j <= i or j < PREFIX[b]),
    "documents": (masks.documents(IDS), lambda b, h, i, j: DOCUMENTS[b][i] == DOCUMENTS[b][j] >= 0),
    "causal-documents": (
        masks.documents(IDS) & masks.causal(),
        lambda b, h, i, j: DOCUMENTS[b][i] == DOCUMENTS[b][j] >= 0 and j <= i,
    ),
    "packed": (masks.packed(OFFSETS), lambda b, h, i, j: document(i) == document(j) >= 0),
    "padding": (
        masks.padding(KEEP, QUERY_KEEP) & masks.causal(),
        lambda b, h, i, j: KEPT[b][j] and QUERIES_KEPT[b][i] and j <= i,
    ),
    "lengths": (
        masks.lengths(torch.tensor(KEYS), torch.tensor(QUERIES)),
        lambda b, h, i, j: j < KEYS[b] and i < QUERIES[b],
    ),
    "global-tokens": (
        masks.window(3) | masks.global_tokens([0, 17]),
        lambda b, h, i, j: abs(i - j) <= 3 or i in (0, 17) or j in (0, 17),
    ),
    "not-causal": (~masks.causal(), lambda b, h, i, j: j > i),
    "blocks": (masks.blocks(7) & masks.causal(), lambda b, h, i, j: i // 7 == j // 7 and j <= i),
    "dilated": (masks.dilated(3), lambda b, h, i, j: (j - i) % 3 == 0),
    "dense": (masks.dense(DENSE), lambda b, h, i, j: PAIRS[h][i][j]),
    "runs": (Runs(4), Runs(4).sees),
    "head-windows": (HeadWindows(2), lambda b, h, i, j: HeadWindows(2).sees(h, j - i)),
    "own": (OddSum(5) & masks.causal(), lambda b, h, i, j: (3 * i + j) % 5 != 0 and j <= i),
}


@cache
def visible(case):
    """The rule of a case, pair by pair, bool (b,h,q,k)."""
    return oracle.visible(CASES[case][1], BATCH, HEADS, LENGTH, LENGTH)


@dataclass(frozen=True)
class Inputs:
    """The whole sequence, and the gradient of the result."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    grad: torch.Tensor
    grad_logsumexp: torch.Tensor


def inputs(length=LENGTH, dtype=torch.float64, groups=GROUPS, heads=HEADS):
    random = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

    return Inputs(
        draw(BATCH, heads, length, WIDTH),
        draw(BATCH, groups, length, WIDTH),
        draw(BATCH, groups, length, VALUE_WIDTH),
        draw(BATCH, heads, length, VALUE_WIDTH),
        draw(BATCH, heads, length),
    )
