"""Who holds which positions, what sections of masks and biases say, and what is sent and computed."""

import pytest
import torch

from regard import biases, masks
from regard.errors import RegardError
from regard.masks import EMPTY, FULL, PARTIAL
from regard.parallel import layout, schedule, sections
from regard.values.grid import full_grid
from tests.parallel.cases import BATCH, CASES, HEADS, LENGTH, visible

SIZES = (BATCH, HEADS, LENGTH, LENGTH)
KINDS = ("zigzag", "contiguous")


@pytest.mark.parametrize("length, ranks", [(37, 2), (37, 4), (97, 5), (5, 4), (1, 3), (16, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_position_is_held_once_and_joining_the_parts_gives_the_whole(kind, length, ranks):
    chosen = layout.build(kind, length, ranks)
    held = torch.cat([chosen.positions(rank) for rank in range(ranks)])
    assert sorted(held.tolist()) == list(range(length))
    whole = torch.randn(3, length, 2)
    parts = [chosen.take(whole, 1, rank) for rank in range(ranks)]
    assert [part.shape[1] for part in parts] == [chosen.local_length(rank) for rank in range(ranks)]
    assert torch.equal(chosen.join(parts, 1), whole)


def test_zigzag_gives_each_rank_one_early_and_one_late_chunk_of_the_same_work():
    chosen = layout.build("zigzag", 24, 3)
    assert chosen.chunks == ((0, 5), (1, 4), (2, 3))
    assert chosen.positions(1).tolist() == [4, 5, 6, 7, 16, 17, 18, 19]
    pairs = [(chosen.positions(rank) + 1).sum().item() for rank in range(3)]  # under a causal mask
    assert pairs == [100, 100, 100]


def test_balanced_is_zigzag_for_causal_and_contiguous_for_windows():
    assert schedule.choose("balanced", 96, 4, masks.causal()) == layout.build("zigzag", 96, 4)
    assert schedule.choose("balanced", 96, 4, masks.window(5)) == layout.build("contiguous", 96, 4)
    assert schedule.choose("balanced", 96, 4) == layout.build("contiguous", 96, 4)


def test_balanced_evens_out_documents_of_different_lengths():
    """One document of 64 positions and 32 of one: contiguous chunks would leave most work to two of four ranks."""
    ids = torch.cat([torch.zeros(64), torch.arange(1, 33)]).long()
    mask = masks.documents(ids) & masks.causal()
    rows = mask.dense(96, 96)[0, 0].sum(1)

    def heaviest(chosen):
        return max(int(rows[chosen.positions(rank)].sum()) for rank in range(4))

    # Chunks of 12 rows compute 78, 222, 366, 510, 654, 258, 12 and 12 pairs: the heaviest goes with the lightest.
    chosen = schedule.choose("balanced", 96, 4, mask)
    assert sorted(chosen.chunks) == [(0, 2), (1, 5), (3, 6), (4, 7)]
    assert heaviest(chosen) == 666 and heaviest(layout.build("contiguous", 96, 4)) == 912


def test_a_chunk_that_is_missing_or_dealt_twice_is_refused():
    for hands in ([[0], [0]], [[0], [2]]):
        with pytest.raises(RegardError, match="every chunk from 0 to 1"):
            layout.deal(10, hands)


SECTIONS = [
    (slice(0, 37), slice(0, 37)),
    (slice(0, 10), slice(0, 10)),
    (slice(10, 20), slice(0, 10)),
    (slice(0, 10), slice(20, 37)),
    (slice(36, 37), slice(5, 6)),
    (slice(7, 7), slice(3, 9)),
]


@pytest.mark.parametrize("case", [name for name in CASES if name != "none"])
def test_the_section_of_a_mask_is_that_part_of_the_whole(case):
    mask, whole = CASES[case][0], visible(case)
    for rows, columns in SECTIONS:
        for heads in (slice(0, HEADS), slice(2, 3)):
            section = sections.Section.of(SIZES, rows, columns, heads)
            part = sections.of_mask(mask, section, torch.device("cpu"))
            sizes = (rows.stop - rows.start, columns.stop - columns.start, BATCH, heads.stop - heads.start)
            right = whole[:, heads, rows, columns]
            assert torch.equal(part.dense(*sizes).expand_as(right), right), (rows, columns, heads)


def test_the_section_of_a_bias_is_that_part_of_the_whole():
    shapes = ((HEADS, 9), (6, HEADS), (BATCH, HEADS, LENGTH), (HEADS, 1, LENGTH))
    tables = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    given = biases.relative(tables[0]) + biases.t5(tables[1]) + biases.gaussian(tables[2] * 10, 3.0)
    given = given + biases.dense(tables[3]) + biases.alibi(HEADS)
    whole = given.values(full_grid(SIZES, "cpu"), torch.float64)
    for rows, columns in SECTIONS:
        for heads in (slice(0, HEADS), slice(1, 3)):
            section = sections.Section.of(SIZES, rows, columns, heads)
            sizes = (BATCH, heads.stop - heads.start, rows.stop - rows.start, columns.stop - columns.start)
            found = sections.of_bias(given, section).values(full_grid(sizes, "cpu"), torch.float64)
            torch.testing.assert_close(found, whole[:, heads, rows, columns], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_every_visible_pair_is_computed_once_and_its_keys_are_sent_to_who_needs_them(case, kind, together):
    mask = CASES[case][0]
    chosen = layout.build(kind, LENGTH, 4)
    plan = schedule.make(mask, SIZES, chosen, chosen)
    times = torch.zeros(LENGTH, LENGTH, dtype=torch.int64)
    full = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    for rank in range(4):
        for sender in range(4):
            for block in plan.blocks(rank, plan.wanted(rank, sender), together):
                assert {piece.chunk for piece in block.columns} <= set(chosen.chunks[sender])
                assert set(block.rows) <= set(chosen.chunks[rank])
                for row in block.rows:
                    for piece in block.columns:
                        times[chosen.span(row), piece.span] += 1
                        full[chosen.span(row), piece.span] |= block.full
    seen = visible(case)
    assert (times[seen.any(0).any(0)] == 1).all() and times.max() <= 1
    assert seen.all(0).all(0)[full].all()


def test_hidden_chunks_are_not_scheduled():
    chosen = layout.build("contiguous", 40, 4)
    window = schedule.make(masks.window(10), (1, 1, 40, 40), chosen, chosen)
    assert [[window.wanted(rank, other) for other in range(4)] for rank in (0, 3)] == [
        [((0, 0, 10),), ((1, 10, 20),), (), ()],
        [(), (), ((2, 20, 30),), ((3, 30, 40),)],
    ]
    causal = schedule.make(masks.causal(), (1, 1, 40, 40), chosen, chosen)
    assert causal.grades.tolist() == [
        [PARTIAL, EMPTY, EMPTY, EMPTY],
        [FULL, PARTIAL, EMPTY, EMPTY],
        [FULL, FULL, PARTIAL, EMPTY],
        [FULL, FULL, FULL, PARTIAL],
    ]


def test_only_the_keys_of_a_chunk_that_are_seen_are_scheduled():
    chosen = layout.build("contiguous", 4000, 4)
    plan = schedule.make(masks.window(3, 2), (1, 1, 4000, 4000), chosen, chosen)
    assert plan.wanted(1, 0) == ((0, 997, 1000),) and plan.wanted(1, 2) == ((2, 2000, 2002),)
    assert plan.wanted(1, 1) == ((1, 1000, 2000),) and plan.wanted(1, 3) == ()
    assert plan.keys_received().tolist() == [2, 5, 5, 3] and plan.keys_sent().tolist() == [3, 5, 5, 2]
    documents = masks.documents((torch.arange(4000) // 1010)[None]) & masks.causal()
    plan = schedule.make(documents, (1, 1, 4000, 4000), chosen, chosen)
    assert plan.wanted(2, 1) == ((1, 1010, 2000),)  # queries 2000 … 2019 belong to the document that begins at 1010


def test_a_mask_that_hides_a_little_of_everything_sends_whole_chunks():
    chosen = layout.build("contiguous", 80, 8)
    plan = schedule.make(masks.dilated(2), (1, 1, 80, 80), chosen, chosen)
    assert plan.keys_received().tolist() == [70] * 8
