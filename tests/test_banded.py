"""Masks of distances under `tiled`, which go through torch's fused kernel in blocks that overlap."""

import pytest
import torch

import regard
from regard import masks
from regard.implementations.tiled import banded, strips
from tests.contracts.user_masks import HeadWindows

B, H, G, D = 2, 4, 2, 12
MASKS = {
    "causal window": masks.window(101, 0),
    "two-sided": masks.window(37),
    "one-sided ahead": masks.window(3, 71),
    "before the first key": masks.window(20, 0, offset=-89),
    "beyond the last key": masks.window(20, 0, offset=600),
    "from the top left": masks.window(40, 0, align="top-left"),
    "outside of a window": ~masks.window(61),
    "two bands": masks.causal() & masks.dilated(97),
    "by head": HeadWindows(13),  # in strips: heads differ
    "union": masks.window(5, 9) | masks.dilated(131),
}
SIZES = [(331, 331), (257, 419), (419, 257), (67, 521)]


@pytest.fixture
def taken(monkeypatch):
    """What each run of the fused kernel left to the strips."""
    calls, run = [], banded.run

    def noted(*given):
        calls.append(run(*given))
        return calls[-1]

    monkeypatch.setattr(banded, "run", noted)
    return calls


def drawn(queries, keys, dtype=torch.float32):
    generator = torch.Generator().manual_seed(11)
    return [
        torch.randn(B, heads, length, D, generator=generator).to(dtype)
        for heads, length in ((H, queries), (G, keys), (G, keys))
    ]


def allowed(true, plain, dtype):
    return 2 * (plain.double() - true).abs().max() + 4 * torch.finfo(dtype).eps * true.abs().max()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_the_formula(mask, sizes, taken):
    rows = drawn(*sizes)
    true = regard.attend(*[part.double() for part in rows], mask=mask, impl="reference")
    plain = regard.attend(*rows, mask=mask, impl="reference")
    found = regard.attend(*rows, mask=mask, impl="tiled")
    # Only where each position sees itself, so that no key is hidden from all.
    seen = mask.dense(*sizes, heads=H)
    fused = sizes[0] == sizes[1] and len(seen[0]) == 1 and bool(seen[0, 0].diagonal().all())
    assert bool(taken) is fused
    assert (found.double() - true).abs().max() <= allowed(true, plain, torch.float32)
    empty = ~seen.any(-1, keepdim=True)
    assert (found.masked_select(empty) == 0).all()


def test_strips_of_different_heads_share_no_tile(monkeypatch):
    monkeypatch.setitem(strips.CELLS, "cpu", 1 << 12)
    rows, mask = drawn(257, 257), HeadWindows(13)
    true = regard.attend(*[part.double() for part in rows], mask=mask.dense(257, 257, heads=H), impl="reference")
    found = regard.attend(*rows, mask=mask, impl="tiled")
    torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype, taken):
    rows = drawn(331, 331, dtype)
    true = regard.attend(*[part.double() for part in rows], mask=masks.window(73, 0), impl="reference")
    plain = regard.attend(*rows, mask=masks.window(73, 0), impl="reference")
    found = regard.attend(*rows, mask=masks.window(73, 0), impl="tiled")
    assert taken and found.dtype == dtype
    assert (found.double() - true).abs().max() <= allowed(true, plain, dtype)


def test_strided_inputs_are_read_where_they_are(taken):
    wide = torch.randn(B, 331, 3 * H, D, generator=torch.Generator().manual_seed(2))
    rows = [part.transpose(1, 2) for part in wide.split(H, 2)]
    expected = regard.attend(*[part.double() for part in rows], mask=masks.window(73), impl="reference")
    found = regard.attend(*rows, mask=masks.window(73), impl="tiled")
    turned = regard.attend(*[part.mT.contiguous().mT for part in rows], mask=masks.window(73), impl="tiled")
    assert len(taken) == 2
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(turned.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3e37])
def test_entries_with_immoderate_numbers_go_through_scored_strips_and_change_no_other(part, number, taken):
    rows = drawn(257, 257)
    clean = regard.attend(*rows, mask=masks.window(31, 0), impl="tiled")
    rows[part][1, 0, 100] = number
    found = regard.attend(*rows, mask=masks.window(31, 0), impl="tiled")
    assert taken == [[], [1]] and torch.equal(found[0], clean[0])
    if number != 3e37:  # a query is seen by its own row, a key and a value by those whose window holds them
        assert not found[1, 0, 100 : 101 if part == 0 else 132].isfinite().any()


def test_what_the_kernel_cannot_do_goes_through_scored_strips(taken):
    query, key, value = drawn(257, 257)
    mask = masks.window(31, 0)
    regard.attend(query, key, value, mask=mask, impl="tiled", return_logsumexp=True)
    for options in ({"normalize": "sparsemax"}, {"sink": torch.zeros(H)}, {"dropout": 0.5}, {"scale": -1.0}):
        regard.attend(query, key, value, mask=mask, impl="tiled", **options)
    regard.attend(query, key, value[..., :5], mask=mask, impl="tiled")
    regard.attend(query, key, value, mask=mask & masks.prefix(200), impl="tiled")
    assert not taken


def test_gradients_are_those_of_the_formula(taken):
    rows = [part.requires_grad_() for part in drawn(257, 257)]
    doubles = [part.detach().double().requires_grad_() for part in rows]
    upstream = torch.randn(B, H, 257, D, generator=torch.Generator().manual_seed(4))
    found = torch.autograd.grad(regard.attend(*rows, mask=masks.window(73), impl="tiled"), rows, upstream)
    true = regard.attend(*doubles, mask=masks.window(73), impl="reference")
    expected = torch.autograd.grad(true, doubles, upstream.double())
    assert taken
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
