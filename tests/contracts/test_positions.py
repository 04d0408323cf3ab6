"""Promise 5: query i stands at position i + (k − q), key j at j, for everything that depends on position."""

import pytest
import torch

import regard
from regard import biases, masks, scores
from tests import oracle
from tests.contracts.harness import EVERYTHING

CAUSAL = {
    (2, 5): ["11110", "11111"],
    (1, 5): ["11111"],
    (5, 2): ["00", "00", "00", "10", "11"],
    (3, 3): ["100", "110", "111"],
}
TOP_LEFT = {(2, 5): ["10000", "11000"], (1, 5): ["10000"], (5, 2): ["10", "11", "11", "11", "11"]}


def table(mask, q, k):
    return ["".join(str(int(x)) for x in row) for row in mask.dense(q, k)[0, 0]]


def test_causal_aligns_the_last_query_with_the_last_key():
    for (q, k), rows in CAUSAL.items():
        assert table(masks.causal(), q, k) == rows


def test_causal_can_be_aligned_at_the_top_left():
    for (q, k), rows in TOP_LEFT.items():
        assert table(masks.causal(align="top-left"), q, k) == rows
        assert table(masks.causal(offset=0), q, k) == rows


def test_a_window_counts_neighbours_besides_itself():
    assert table(masks.window(1), 4, 4) == ["1100", "1110", "0111", "0011"]
    assert table(masks.window(0, 0), 3, 3) == ["100", "010", "001"]
    assert table(masks.window(2, 0), 2, 5) == ["01110", "00111"]
    assert table(masks.window(0, 2), 2, 5) == ["00011", "00001"]
    assert table(masks.window(1, 0, align="top-left"), 2, 5) == ["10000", "11000"]
    assert table(masks.window(1, 0, offset=2), 2, 5) == ["01100", "00110"]
    for w in (1, 3, 5):
        assert masks.window(w - 1, 0).dense(9, 9)[0, 0, -1].sum() == w
        assert masks.window(w // 2).dense(9, 9)[0, 0, 4].sum() == w


def test_blocks_dilation_and_global_tokens_use_positions_too():
    assert table(masks.blocks(2), 2, 5) == ["00110", "00001"]
    assert table(masks.blocks(2), 3, 2) == ["00", "11", "11"]
    assert table(masks.dilated(2), 2, 5) == ["01010", "10101"]
    assert table(masks.dilated(3), 3, 2) == ["00", "10", "01"]
    assert table(masks.global_tokens([3]), 2, 5) == ["11111", "00010"]


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("q", [1, 4, 13])
@pytest.mark.parametrize(
    "name", ["causal", "window", "blocks", "alibi", "relative", "t5", "t5 causal", "shaw", "transformer_xl"]
)
def test_the_last_queries_alone_equal_the_last_rows_of_all(name, q, impl, device):
    """What depends on position gives the last q rows the same answer with or without the rows before them."""
    b, h, k, d = 2, 3, 23, 5
    query, key, value = (torch.randn(b, h, k, d, device=device) for _ in range(3))
    row, rows = torch.randn(d, device=device), torch.randn(7, d, device=device)
    arguments = {
        "causal": {"mask": masks.causal()},
        "window": {"mask": masks.window(3, 1)},
        "blocks": {"mask": masks.blocks(4) | masks.dilated(5)},
        "alibi": {"bias": biases.alibi(h)},
        "relative": {"bias": biases.relative(torch.randn(h, 7, device=device))},
        "t5": {"bias": biases.t5(torch.randn(8, h, device=device), max_distance=10)},
        "t5 causal": {"bias": biases.t5(torch.randn(8, h, device=device), bidirectional=False, max_distance=10)},
        "shaw": {"score": scores.shaw(rows)},
        "transformer_xl": {"score": scores.transformer_xl(row, row, rows)},
    }[name]
    everything = regard.attend(query, key, value, impl=impl, **arguments)
    last = regard.attend(query[:, :, -q:], key, value, impl=impl, **arguments)
    torch.testing.assert_close(last, everything[:, :, -q:])


@pytest.mark.parametrize("impl", EVERYTHING)
def test_an_offset_places_queries_in_a_preallocated_cache(impl, device):
    """Keys beyond the filled part are garbage: a causal mask with an offset neither sees nor reads them."""
    filled, q, room = 9, 3, 29
    query = torch.randn(2, 3, q, 5, device=device)
    cache = torch.full((2, 3, room, 5), float("nan"), device=device)
    cache[:, :, : filled + q] = torch.randn(2, 3, filled + q, 5, device=device)
    found = regard.attend(query, cache, cache, mask=masks.causal(offset=filled), impl=impl)
    used = cache[:, :, : filled + q]
    torch.testing.assert_close(found, regard.attend(query, used, used, mask=masks.causal(), impl=impl))


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("make", [masks.causal, lambda offset: masks.window(4, 0, offset=offset)])
def test_offsets_may_differ_in_a_batch(make, impl, device):
    offsets, q, room = [0, 9, 17], 3, 23
    query, key, value = (torch.randn(3, 2, n, 5, device=device) for n in (q, room, room))
    mask = make(offset=torch.tensor(offsets, device=device))
    found = regard.attend(query, key, value, mask=mask, impl=impl)
    for n, offset in enumerate(offsets):
        one = regard.attend(query[n : n + 1], key[n : n + 1], value[n : n + 1], mask=make(offset=offset), impl=impl)
        torch.testing.assert_close(found[n : n + 1], one)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_lengths_are_tensor_sizes_never_the_lengths_of_a_mask(impl, device):
    """A causal mask joined with lengths keeps counting positions from the tensors' own ends."""
    query, key, value = (torch.randn(1, 2, n, 5, device=device) for n in (4, 7, 7))
    mask = masks.causal() & masks.lengths(torch.tensor([5], device=device))
    found = regard.attend(query, key, value, mask=mask, impl=impl)
    seen = [["1111000", "1111100", "1111100", "1111100"][i] for i in range(4)]
    dense = torch.tensor([[c == "1" for c in row] for row in seen], device=device)
    torch.testing.assert_close(found, regard.attend(query, key, value, mask=dense, impl="reference"))


def aligned_by_hand(name, table, first, query, k):
    """What is added to q·k when query 0 stands at `first`, one distance at a time, (h,q,k) or (b,h,q,k)."""
    h, q = query.shape[1:3]
    away = [[j - (i + first) for j in range(k)] for i in range(q)]
    clipped = torch.tensor([[min(max(x, -3), 3) + 3 for x in row] for row in away])
    if name == "alibi":
        slopes = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=query.dtype)
        return -slopes.view(h, 1, 1) * torch.tensor(away, dtype=query.dtype).abs()
    if name == "relative":
        return table[:, clipped]
    if name.startswith("t5"):
        index = [[oracle.t5_bucket(x, 8, name == "t5", 10) for x in row] for row in away]
        return table[torch.tensor(index)].permute(2, 0, 1)
    return (query[..., None, :] * table[clipped]).sum(-1)  # shaw, transformer_xl without its biases


ALIGNED = {
    "alibi": ((1,), lambda t, **a: {"bias": biases.alibi(3, **a)}),
    "relative": ((3, 7), lambda t, **a: {"bias": biases.relative(t, **a)}),
    "t5": ((8, 3), lambda t, **a: {"bias": biases.t5(t, max_distance=10, **a)}),
    "t5 causal": ((8, 3), lambda t, **a: {"bias": biases.t5(t, bidirectional=False, max_distance=10, **a)}),
    "shaw": ((7, 5), lambda t, **a: {"score": scores.shaw(t, **a)}),
    "transformer_xl": ((7, 5), lambda t, **a: {"score": scores.transformer_xl(t.new_zeros(5), t.new_zeros(5), t, **a)}),
}


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize(("q", "k"), [(4, 13), (13, 4), (1, 11)])
@pytest.mark.parametrize("name", ALIGNED)
def test_distances_can_be_counted_from_the_top_left_or_from_an_offset(name, q, k, impl):
    shape, build = ALIGNED[name]
    query, key, value = (torch.randn(2, 3, n, 5, dtype=torch.float64) for n in (q, k, k))
    for where, first in (({"align": "top-left"}, 0), ({"offset": 6}, 6), ({"offset": -2}, -2), ({}, k - q)):
        table = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        found = regard.attend(query, key, value, impl=impl, scale=0.7, **build(table, **where))
        added = aligned_by_hand(name, table, first, query, k)
        logits = query @ key.mT * 0.7 + added * (0.7 if name in ("shaw", "transformer_xl") else 1)
        expected = logits.softmax(-1) @ value
        torch.testing.assert_close(found, expected)
        if name != "alibi":
            direction = torch.randn_like(expected)
            grads = [torch.autograd.grad(out, table, direction)[0] for out in (found, expected)]
            torch.testing.assert_close(*grads)


def test_an_alignment_is_part_of_what_a_bias_is():
    for made, written in (
        (biases.alibi(3, align="top-left"), "biases.alibi(3, align='top-left')"),
        (biases.alibi(3, offset=4), "biases.alibi(3, offset=4)"),
        (biases.alibi(3), "biases.alibi(3)"),
    ):
        assert repr(made) == written and eval(written, {"biases": biases}) == made
    assert biases.alibi(3, offset=0) != biases.alibi(3)
    for wrong, word in (
        ({"align": "left"}, "align"),
        ({"offset": 1.5}, "offset"),
        ({"align": "top-left", "offset": 2}, "offset"),
    ):
        with pytest.raises(regard.RegardError, match=word):
            biases.relative(torch.zeros(3, 5), **wrong)
        with pytest.raises(regard.RegardError, match=word):
            scores.shaw(torch.zeros(5, 4), **wrong)
