"""The formulas of docs/scaling.md: against the schedule, against counted traffic, and simulated to 1,024 ranks."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from regard import masks, parallel
from regard.comparison import flops
from regard.errors import RegardError
from regard.parallel import costs
from tests.parallel.cases import CASES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
BATCH, HEADS, GROUPS, WIDTH, VALUE_WIDTH = 2, 4, 2, 6, 10
LENGTH = 48


def counted(kind, case, layout, exchange, dtype):
    """In a rank: bytes of both passes as the transport counts them, and operations as torch counts them."""
    mask = CASES[case][0]
    sequence = parallel.ShardedSequence(LENGTH, layout=layout, mask=mask)
    shapes = ((HEADS, WIDTH), (GROUPS, WIDTH), (GROUPS, VALUE_WIDTH))
    rows = [
        torch.randn(BATCH, count, sequence.local_length, width, dtype=dtype, requires_grad=True)
        for count, width in shapes
    ]
    found = {}

    def both_passes():
        with parallel.count_traffic() as forward:
            output = parallel.attend(*rows, sequence, mask=mask, exchange=exchange, impl="tiled")
        with parallel.count_traffic() as backward:
            output.sum().backward()
        found.update(bytes=[forward.sent, forward.received, backward.sent, backward.received], peers=forward.peers)

    found["flops"] = flops.count(both_passes)
    return found


def shape_of(dtype):
    return costs.Shape(LENGTH, HEADS, GROUPS, WIDTH, VALUE_WIDTH, batch=BATCH, itemsize=dtype.itemsize)


MASKS = {"none": None, "causal": masks.causal(), "window": masks.window(5, 2)}


@pytest.mark.parametrize("exchange", ["ring", "heads"])
@pytest.mark.parametrize("case, layout", [("none", "zigzag"), ("causal", "zigzag"), ("window", "contiguous")])
def test_counted_bytes_and_operations_are_those_of_the_formulas(ranks, case, layout, exchange):
    dtype = torch.float32 if case == "causal" else torch.float64
    answers = ranks.run(counted, "", case, layout, exchange, dtype)
    visible = torch.ones(LENGTH, LENGTH) if MASKS[case] is None else MASKS[case].dense(LENGTH, LENGTH)[0, 0]
    of_row = visible.sum(1).long()
    chosen = parallel.schedule.choose(layout, LENGTH, ranks.count)
    pairs = np.array([int(of_row[chosen.positions(rank)].sum()) for rank in range(ranks.count)])
    if exchange == "ring":
        right = costs.ring(shape_of(dtype), MASKS[case], ranks.count, layout, pairs)
    else:
        right = costs.heads(shape_of(dtype), MASKS[case], ranks.count, layout, int(pairs.sum()))
    for rank, answer in enumerate(answers):
        assert answer["bytes"] == [
            right.forward_sent[rank], right.forward_received[rank], right.backward_sent[rank],
            right.backward_received[rank],
        ]  # fmt: skip
        assert answer["flops"] == right.flops[rank]
    if case == "window" and exchange == "ring":  # five positions before and two after reach the neighbours only
        assert [answer["peers"] for answer in answers] == [
            {rank - 1, rank + 1} & set(range(ranks.count)) for rank in range(ranks.count)
        ]


@pytest.mark.parametrize("ranks", [2, 4, 7, 64, 1024])
def test_the_closed_forms_hold_for_any_number_of_ranks(ranks):
    """docs/scaling.md: c positions in a chunk, two chunks a rank under zig-zag, one if contiguous."""
    chunk = 6
    rank = np.arange(ranks)
    shape = costs.Shape(2 * chunk * ranks, HEADS, GROUPS, WIDTH, VALUE_WIDTH, itemsize=2)
    unit = GROUPS * (WIDTH + VALUE_WIDTH)
    causal = costs.ring(shape, masks.causal(), ranks, "zigzag")
    assert (causal.forward_received == 2 * unit * chunk * (2 * ranks - 2 - rank)).all()
    assert (causal.forward_sent == 2 * unit * chunk * (ranks - 1 + rank)).all()
    assert (causal.backward_received == causal.forward_received + 2 * causal.forward_sent).all()
    everything = costs.ring(shape, None, ranks, "zigzag")
    assert (everything.forward_received == 2 * unit * 2 * chunk * (ranks - 1)).all()
    window = costs.ring(shape, masks.window(chunk, 0), ranks, "contiguous")
    assert (window.forward_received == 2 * unit * 2 * chunk * (rank > 0)).all()


def test_the_blocks_of_a_causal_mask_leave_each_rank_the_same_work():
    for ranks in (2, 16, 1024):
        shape = costs.Shape(1024 * 24, HEADS, GROUPS, WIDTH)
        found = costs.ring(shape, masks.causal(), ranks, "zigzag")
        assert found.flops.max() == found.flops.min()
        uneven = costs.ring(shape, masks.causal(), ranks, "contiguous")
        assert uneven.flops.max() / uneven.flops.mean() == pytest.approx(2 - 1 / ranks, rel=0.02)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(RegardError, match="groups: expected a divisor of the 4 heads, got 3"):
        costs.Shape(10, 4, 3, 8)
    with pytest.raises(RegardError, match="length: expected a whole number of at least 1, got 0"):
        costs.Shape(0, 4, 4, 8)
    with pytest.raises(RegardError, match="ranks: expected a divisor of the 4 heads, got 8"):
        costs.heads(costs.Shape(10, 4, 4, 8), None, 8)
