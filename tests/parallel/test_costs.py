"""The formulas of docs/scaling.md: against the schedule, against counted traffic, and simulated to 1,024 ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard import masks, parallel
from regard.errors import RegardError
from regard.parallel import costs
from regard_workbench.comparison import flops
from tests.contracts.user_masks import HeadWindows
from tests.parallel.cases import CASES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
BATCH, HEADS, GROUPS, WIDTH, VALUE_WIDTH = 2, 4, 2, 6, 10
LENGTH = 48


def counted(case, layout, exchange, dtype):
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
    answers = ranks.run(counted, case, layout, exchange, dtype)
    visible = torch.ones(LENGTH, LENGTH) if MASKS[case] is None else MASKS[case].dense(LENGTH, LENGTH)[0, 0]
    if exchange == "ring":
        right = costs.ring(shape_of(dtype), MASKS[case], ranks.count, layout)
    else:
        right = costs.heads(shape_of(dtype), MASKS[case], ranks.count, layout, int(visible.sum()))
    for rank, answer in enumerate(answers):
        assert answer["bytes"] == [
            right.forward_sent[rank],
            right.forward_received[rank],
            right.backward_sent[rank],
            right.backward_received[rank],
        ]
        assert answer["flops"] == pytest.approx(right.flops[rank], rel=1e-12)
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
    assert (window.forward_received == 2 * unit * chunk * (rank > 0)).all()  # the window, not the chunk


def test_the_blocks_of_a_causal_mask_leave_each_rank_the_same_work():
    for ranks in (2, 16, 1024):
        shape = costs.Shape(1024 * 24, HEADS, GROUPS, WIDTH)
        found = costs.ring(shape, masks.causal(), ranks, "zigzag")
        assert found.flops.max() == found.flops.min()
        chunk = shape.length // (2 * ranks)
        per_pair = 2 * HEADS * (2 * WIDTH + 5 * WIDTH)
        assert found.flops[0] == per_pair * ((2 * ranks - 1) * chunk**2 + chunk * (chunk + 1))
        uneven = costs.ring(shape, masks.causal(), ranks, "contiguous")
        assert uneven.flops.max() / uneven.flops.mean() == pytest.approx(2 - 1 / ranks, rel=1e-3)


@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.window(5, 2), ~masks.window(3) & masks.dilated(2), masks.full(), HeadWindows(2)]
)
def test_visible_pairs_of_masks_of_distances_are_counted_exactly(mask):
    shape = costs.Shape(37, heads=4, groups=1, width=1)
    found = costs.ring(shape, mask, 3, "zigzag").flops / (2 * 7)
    rows = mask.dense(37, 37, heads=4).expand(-1, 4, -1, -1)[0].sum((0, 2))
    chosen = parallel.schedule.choose("zigzag", 37, 3)
    assert found.tolist() == [int(rows[chosen.positions(rank)].sum()) for rank in range(3)]


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(RegardError, match="groups: expected a divisor of the 4 heads, got 3"):
        costs.Shape(10, 4, 3, 8)
    with pytest.raises(RegardError, match="length: expected a whole number of at least 1, got 0"):
        costs.Shape(0, 4, 4, 8)
    with pytest.raises(RegardError, match="ranks: expected a divisor of the 4 heads, got 8"):
        costs.heads(costs.Shape(10, 4, 4, 8), None, 8)


def rows_of(title):
    """The rows of the table under a heading of the document, as lists of cells."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("which", ["causal", pytest.param("all", marks=pytest.mark.slow)])
def test_the_simulated_table_of_the_document_is_what_the_schedule_gives(which):
    shape = costs.Shape(10_000_000, heads=32, groups=8, width=128)
    given = {
        "none": (None, "zigzag"),
        "causal": (masks.causal(), "zigzag"),
        "causal, contiguous": (masks.causal(), "contiguous"),
        "window of 4,096": (masks.window(4095, 0), "contiguous"),
    }
    rows = rows_of("Simulated to 1,024 ranks and ten million tokens")
    assert {int(row[1].replace(",", "")) for row in rows} == {8, 64, 1024} and {row[0] for row in rows} == {*given}
    for name, ranks, received, work, balance in rows:
        if which not in (name, "all"):
            continue
        mask, layout = given[name]
        found = costs.ring(shape, mask, int(ranks.replace(",", "")), layout)
        assert received == f"{found.received.max() / 1e9:.2f} GB"
        assert work == f"{found.flops.max() / 1e15:,.3g}"
        assert balance == f"{found.flops.max() / found.flops.mean():.3f}"


def test_the_counted_table_of_the_document_is_what_two_and_four_processes_count(ranks):
    rows = rows_of("Counted on two and four processes")
    for name, processes, exchange, forward, both in rows:
        if int(processes) == ranks.count:
            layout = "contiguous" if name == "window" else "zigzag"
            answers = ranks.run(counted, name, layout, exchange, torch.float32)
            assert forward == ", ".join(f"{answer['bytes'][1]:,}" for answer in answers)
            assert both == ", ".join(f"{answer['bytes'][1] + answer['bytes'][3]:,}" for answer in answers)
    assert {row[1] for row in rows} == {"2", "4"}
