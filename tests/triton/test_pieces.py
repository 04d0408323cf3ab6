"""Long walks cut into pieces, and rows that must not be read: what is fetched in bulk stops before them."""

import pytest
import torch
import triton
import triton.language as tl

import regard
from regard import masks
from regard.implementations.triton.launch import blocks, pieces
from regard.implementations.triton.launch.block_schedule import key_blocks, query_blocks
from regard.masks.visibility import sees_itself

from .conftest import DEVICE, LARGE_BLOCKS

SIZE = 64 if LARGE_BLOCKS else 16  # of a block


def _rows(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE).requires_grad_()


def _both(given, upstream, **options):
    found = []
    for impl in ("reference", "triton", "triton"):
        output = regard.attend(*given, impl=impl, **options)
        found.append([output, *torch.autograd.grad(output, given, upstream)])
    return found


@pytest.mark.skipif(LARGE_BLOCKS, reason="the numbers are those of the interpreter")
def test_only_walks_that_hold_up_the_rest_are_cut():
    steps = [11, 2, 2, 2, 3, 2]
    assert pieces.cut_long(steps, lines=100, processors=4) is None  # each program has 275 steps to do
    assert pieces.cut_long([2, 3, 2, 3, 2], lines=1, processors=400) is None
    found = pieces.cut_long(steps, lines=1, processors=400)
    assert found.splits == [(0, 0, 4)] and found.slots == 4  # at most 3 steps, one and a half times the usual 2
    assert sorted(found.pieces) == [
        (0, 0, 3, 0),
        (0, 3, 6, 1),
        (0, 6, 9, 2),
        (0, 9, 11, 3),
        (1, 0, 2, -1),
        (2, 0, 2, -1),
        (3, 0, 2, -1),
        (4, 0, 3, -1),
        (5, 0, 2, -1),
    ]
    lengths = [end - first for _, first, end, _ in found.pieces]
    assert lengths == sorted(lengths, reverse=True)


@pytest.fixture
def many_processors(monkeypatch):
    """Every walk that is longer than the others is cut, as on a large GPU."""
    monkeypatch.setattr(blocks, "processors", lambda device: 10_000)
    monkeypatch.setattr(blocks, "_BY_SPEC", {})
    monkeypatch.setattr(pieces, "SHORTEST", 2)  # as in the interpreter: short walks are enough
    cut = []
    original = blocks.cut_long

    def watched(*arguments):
        cut.append(original(*arguments))
        return cut[-1]

    monkeypatch.setattr(blocks, "cut_long", watched)
    return cut


@pytest.mark.parametrize(
    "options", [{"sink": True, "score": "softcap"}, {"shared": True}], ids=["sink and softcap", "shared"]
)
def test_pieces_give_what_the_reference_gives_and_the_same_bits_each_time(many_processors, options):
    length, mask = 9 * SIZE + 5, masks.window(3, 0) | masks.global_tokens([0, 3])
    score = regard.scores.softcap(3.0) if "score" in options else "scaled-dot"
    heads = 2 if "shared" in options else 1
    given = [_rows(1, heads, length, 16), _rows(1, 1, length, 16, seed=1), _rows(1, 1, length, 16, seed=2)]
    more = {"sink": _rows(heads, seed=4)} if "sink" in options else {}
    truth, found, again = _both(given, _rows(1, heads, length, 16, seed=3).detach(), mask=mask, score=score, **more)
    assert sum(one is not None for one in many_processors) >= 2  # by blocks of queries, and of keys
    for expected, actual, repeated in zip(truth, found, again, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(actual, repeated)


def test_the_next_block_with_a_hidden_row_is_found_for_every_block():
    bad = torch.zeros(2, 1, 11, dtype=torch.bool)
    bad[0, 0, [3, 8]] = True
    none = 2**31 - 1
    assert blocks._next_unclean(bad, 2).tolist() == [[[1, 1, 4, 4, 4, none, none]], [[none] * 7]]


def _run(impl, given, upstream, mask):
    output = regard.attend(*given, mask=mask, impl=impl)
    return [output, *torch.autograd.grad(output, given, upstream)]


HIDING = {
    "documents": lambda ids: masks.causal() & masks.documents(ids),
    "documents alone": lambda ids: masks.documents(ids),
    "lengths": lambda ids: masks.lengths((ids >= 0).sum(1), (ids >= 0).sum(1)),
    "keys of padding": lambda ids: masks.causal() & masks.padding(ids >= 0),
}


@pytest.mark.parametrize("name", HIDING)
def test_what_is_hidden_is_not_read_where_other_rows_are_fetched_in_bulk(name):
    length = 3 * SIZE + 3
    ids = (torch.arange(length, device=DEVICE) // (SIZE + 2)).expand(2, -1).clone()
    ids[1, 2 * SIZE + 1 :] = -1  # the first entry hides nothing, the second its end
    hidden = (ids < 0)[:, None, :, None]
    upstream = _rows(2, 1, length, 16, seed=3).detach().masked_fill(hidden, 0)
    rows = [_rows(2, 1, length, 16, seed=seed) for seed in range(3)]
    first = 1 if name == "keys of padding" else 0  # there queries are real
    spoiled = [
        part.detach().masked_fill(hidden, torch.nan if n >= first else 0).requires_grad_()
        for n, part in enumerate(rows)
    ]
    clean = [part.detach().masked_fill(hidden, 0).requires_grad_() for part in rows]
    mask = HIDING[name](ids)
    truth, found = (_run(*one, upstream, mask) for one in (("reference", clean), ("triton", spoiled)))
    for expected, actual in zip(truth, found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@triton.jit
def _blocks_of_band(OUT, STRIDES, q_len, k_len, FORM: tl.constexpr, SIZE: tl.constexpr):
    """The blocks that each block of queries visits, then those that each block of keys is visited by."""
    line, by_query = tl.program_id(0), tl.cdiv(q_len, SIZE)
    if line < by_query:
        rows = tl.minimum(line * SIZE + tl.arange(0, SIZE), q_len - 1)
        partial, full, first, before, _ = key_blocks(FORM, OUT, STRIDES, OUT, 0, rows, k_len, SIZE)
    else:
        start = (line - by_query) * SIZE
        partial, full, first, before, _ = query_blocks(FORM, STRIDES, OUT, OUT, 0, q_len, start, k_len, SIZE, SIZE)
    tl.store(OUT + line * 4, partial)
    tl.store(OUT + line * 4 + 1, full)
    tl.store(OUT + line * 4 + 2, first)
    tl.store(OUT + line * 4 + 3, before)


BANDS = [
    masks.causal(),
    masks.window(3, 0),
    masks.window(21, 5),
    masks.causal(offset=-19),
    masks.window(2, 1, offset=23),
]


@pytest.mark.parametrize("mask", BANDS, ids=repr)
@pytest.mark.parametrize("lengths", [(35, 35), (19, 53), (53, 19)], ids=str)
def test_a_band_visits_exactly_the_blocks_in_which_something_is_visible(mask, lengths):
    size, (queries, keys) = 16, lengths
    prepared = blocks.prepare(mask, None, (1, 1, queries, keys), torch.device("cpu"))
    seen = torch.nn.functional.pad(mask.dense(queries, keys)[0, 0], (0, -keys % size, 0, -queries % size))
    tiles = seen.unflatten(1, (-1, size)).unflatten(0, (-1, size))  # (blocks, 16, blocks, 16)
    real = torch.nn.functional.pad(torch.ones(queries, keys, dtype=torch.bool), (0, -keys % size, 0, -queries % size))
    real[:, keys:] = True  # a block that reaches beyond the last key is never full, one beyond the last query may be
    every = (tiles | ~real.unflatten(1, (-1, size)).unflatten(0, (-1, size))).all(3).all(1)
    some = tiles.any(3).any(1)
    lines = sum(some.shape)
    found = torch.zeros(lines, 4, dtype=torch.int32, device=DEVICE)
    _blocks_of_band[(lines,)](found, prepared.strides, queries, keys, prepared.form, size)
    for line, (partial, full, first, before) in enumerate(found.tolist()):
        visible, complete = (
            part[line] if line < some.shape[0] else part[:, line - some.shape[0]] for part in (some, every)
        )
        visited = list(range(first, first + partial + full))
        assert visited == torch.nonzero(visible).flatten().tolist()
        assert all(complete[block] for block in visited[before : before + full])


def test_which_masks_let_a_query_see_its_own_position():
    sizes, ids = (1, 1, 7, 7), torch.zeros(1, 7, dtype=torch.int64)
    assert sees_itself(masks.causal() & masks.documents(ids), sizes)
    assert sees_itself(masks.window(0) | masks.padding(ids > 0), sizes)
    assert not sees_itself(masks.causal() & masks.padding(ids > 0), sizes)
    assert not sees_itself(masks.documents(ids, ids), sizes)
    assert not sees_itself(masks.causal(offset=-1), sizes)
    assert sees_itself(masks.causal(), (1, 1, 3, 7)) and not sees_itself(masks.causal(), (1, 1, 7, 3))
