"""What kernels leave out of most tiles: comparisons that a mask does not need there, and parts of a bias."""

import pytest
import torch

import regard
from regard import biases, masks
from tests.triton.conftest import DEVICE

QUERIES, KEYS, HEADS = 53, 67, 2
IDS = (torch.arange(KEYS) // 20).expand(1, -1).to(DEVICE)
MASKS = {
    "none": lambda: None,
    "causal": masks.causal,
    "window": lambda: masks.window(19, 5),
    "window beyond the keys": lambda: masks.window(5, 19, offset=44),
    "causal from the middle on": lambda: masks.causal(offset=-30),
    "prefix": lambda: masks.causal() | masks.prefix(13),
    "lengths": lambda: masks.lengths(torch.tensor([41], device=DEVICE)),
    "global": lambda: masks.window(19, 0) | masks.global_tokens([3, 66]),
    "dilated": lambda: masks.dilated(3) & masks.causal(),
    "documents": lambda: masks.documents(IDS[:, :QUERIES], IDS),
}


def drawn(seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (QUERIES, KEYS, KEYS, QUERIES)
    return [torch.randn(1, HEADS, n, 16, generator=generator).to(DEVICE) for n in sizes]


def both(query, key, value, upstream, **options):
    """The output, the log-sum-exp and the gradients by the kernels, and exactly."""
    found = []
    for impl, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        out, lse = regard.attend(*leaves, impl=impl, return_logsumexp=True, **options)
        gradients = torch.autograd.grad([out, lse], leaves, [upstream.to(dtype), torch.ones_like(lse)])
        found.append([part.double() for part in (out.detach(), lse.detach(), *gradients)])
    return zip(*found, strict=True)


@pytest.mark.parametrize("bias", [None, "alibi"])
@pytest.mark.parametrize("mask", MASKS)
def test_every_pair_is_seen_or_hidden_and_biased_as_it_should(mask, bias):
    options = {"mask": MASKS[mask](), "bias": None if bias is None else biases.alibi(HEADS)}
    for mine, true in both(*drawn(), **options):
        torch.testing.assert_close(mine, true, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shift", [-9, 0, 21])
def test_a_slope_falls_to_both_sides_of_a_shifted_position(shift):
    for mine, true in both(*drawn(1), bias=biases.alibi(HEADS, offset=shift)):
        torch.testing.assert_close(mine, true, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("scale", [-0.4, 0.0, 1e-3, 3.0])
@pytest.mark.parametrize("bias", [None, "alibi"])
def test_scales_of_every_sign(scale, bias):
    options = {"scale": scale, "mask": masks.window(19, 0), "bias": None if bias is None else biases.alibi(HEADS)}
    for mine, true in both(*drawn(2), **options):
        torch.testing.assert_close(mine, true, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
def test_rows_of_an_infinite_query_are_nan_where_they_see_a_key(mask):
    """Also where all of their scores are −inf; rows that see nothing stay 0."""
    query, key, value, _ = drawn(3)
    query[0, 1, :, 5] = torch.inf
    key = -key.abs()
    found, true = (
        regard.attend(query.requires_grad_(), key, value, mask=MASKS[mask](), impl=impl)
        for impl in ("triton", "reference")
    )
    assert torch.equal(found.isnan(), true.isnan())
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("mask", ["causal", "window", "global", "prefix"])
def test_a_row_of_nan_leaves_the_gradients_of_keys_it_does_not_see(mask):
    query, key, value, upstream = drawn(4)
    upstream[0, 0, 20] = torch.nan
    every = torch.eye(KEYS, device=DEVICE).expand(1, HEADS, KEYS, KEYS)
    seen = regard.attend(query, key, every, mask=MASKS[mask](), impl="reference")[0, 0, 20] > 0
    _, _, of_query, of_key, _ = [mine for mine, _ in both(query, key, value, upstream, mask=MASKS[mask]())]
    assert seen.any() and not seen.all()
    assert torch.equal(of_key[0, 0].isnan().all(1), seen) and torch.equal(of_key[0, 0].isnan().any(1), seen)
    assert of_key[0, 1].isfinite().all()
    assert of_query[0, 0].isnan().any(1).nonzero().flatten().tolist() == [20]
