"""Dropout of weights: how many fall, that none is preferred, that backward drops the same ones."""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regard
from regard import biases, masks, scores

IMPLEMENTATIONS = ["reference", "tiled", "auto"]
SURPRISE = 4.9  # standard deviations: a two-sided p of 1e-6


def kept(impl, device, p, b=2, h=3, q=67, k=131, seed=0):
    """Which weights survived: uniform weights, and a value that is the identity."""
    query, key = torch.zeros(b, h, q, 4, device=device), torch.zeros(b, h, k, 4, device=device)
    value = torch.eye(k, device=device).expand(b, h, k, k)
    torch.manual_seed(seed)
    out = regard.attend(query, key, value, dropout=p, impl=impl)
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / k / (1 - p)))
    return out != 0


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_the_fraction_dropped_is_the_one_asked_for(p, impl, device):
    keep = kept(impl, device, p)
    n = keep.numel()
    dropped = n - int(keep.sum())
    assert abs(dropped / n - p) < 0.01
    assert abs(dropped - n * p) / math.sqrt(n * p * (1 - p)) < SURPRISE


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_every_row_column_head_and_batch_drops_its_share(impl, device):
    p = 0.3
    keep = kept(impl, device, p, q=211, k=193).double()
    for axes in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)):
        share = keep.mean(axes)
        n = keep.numel() / share.numel()
        assert ((share - (1 - p)).abs() / math.sqrt(p * (1 - p) / n)).max() < SURPRISE


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_neighbours_are_not_correlated(impl, device):
    keep = kept(impl, device, 0.5, b=3, h=4, q=127, k=131).double() - 0.5
    n = keep.numel()
    pairs = {
        "key": (keep[..., 1:], keep[..., :-1]),
        "query": (keep[:, :, 1:], keep[:, :, :-1]),
        "head": (keep[:, 1:], keep[:, :-1]),
        "batch": (keep[1:], keep[:-1]),
        "diagonal": (keep[:, :, 1:, 1:], keep[:, :, :-1, :-1]),
        "two keys on": (keep[..., 2:], keep[..., :-2]),
        "transposed": (keep[..., :127], keep[..., :127].transpose(-1, -2)),
    }
    for name, (x, y) in pairs.items():
        correlation = (x * y).mean() * 4
        spread = 1 / math.sqrt(x.numel() / (2 if name == "transposed" else 1))
        expected = 1 / 127 if name == "transposed" else 0.0  # the diagonal meets itself
        assert abs(correlation - expected) < SURPRISE * spread, (name, correlation)
    first, second = (kept(impl, device, 0.5, b=3, h=4, q=127, k=131, seed=s).double() - 0.5 for s in (1, 2))
    assert abs((first * second).mean() * 4) < SURPRISE / math.sqrt(n)


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_mean_over_seeds_is_the_result_without_dropout(impl, device):
    query, key, value = (torch.randn(2, 3, n, 5, device=device) for n in (7, 11, 11))
    expected = regard.attend(query, key, value)
    torch.manual_seed(0)
    runs = torch.stack([regard.attend(query, key, value, dropout=0.4, impl=impl) for _ in range(1500)])
    spread = runs.std(0) / math.sqrt(1500)
    assert ((runs.mean(0) - expected).abs() < SURPRISE * spread).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_same_seed_gives_the_same_bits_and_the_next_call_others(impl, device):
    qkv = [torch.randn(2, 3, 19, 5, device=device) for _ in range(3)]
    torch.manual_seed(7)
    first, second = (regard.attend(*qkv, dropout=0.5, impl=impl) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(first, regard.attend(*qkv, dropout=0.5, impl=impl))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("impl", [*IMPLEMENTATIONS, "sdpa"])
def test_no_dropout_leaves_the_random_state_alone(impl, device):
    qkv = [torch.randn(2, 3, 19, 5, device=device, requires_grad=True) for _ in range(3)]
    before = torch.get_rng_state(), torch.cuda.get_rng_state_all() if device == "cuda" else []
    regard.attend(*qkv, dropout=0.0, impl=impl).sum().backward()
    regard.attend(*qkv, dropout=0, impl=impl)
    after = torch.get_rng_state(), torch.cuda.get_rng_state_all() if device == "cuda" else []
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(x, y) for x, y in zip(before[1], after[1], strict=True))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("p", [1, 1.0])
def test_full_dropout_gives_zeros_and_zero_gradients(p, impl, device):
    qkv = [torch.randn(2, 3, 19, 5, device=device, requires_grad=True) for _ in range(3)]
    out = regard.attend(*qkv, dropout=p, impl=impl)
    assert (out == 0).all()
    for grad in torch.autograd.grad(out.sum(), qkv, allow_unused=True):
        assert grad is None or (grad == 0).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("normalize", ["softmax", "sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("sizes", [(4, 2, 23, 29), (3, 3, 29, 23)])
def test_the_gradient_is_that_of_the_same_dropped_weights(sizes, normalize, impl, device):
    """The mask is read off with an identity value under the same seed, then differentiated by hand."""
    (h, g, q, k), p = sizes, 0.35
    draw = {"dtype": torch.float64, "device": device}
    query, key, value = (torch.randn(2, n, m, 5, **draw) for n, m in ((h, q), (g, k), (g, k)))
    weight, table = torch.randn(h, 5, **draw), torch.randn(h, 9, **draw)
    leaves = [x.requires_grad_() for x in (query, key, value, weight, table)]
    arguments = {
        "score": scores.additive(weight),
        "bias": biases.relative(table),
        "mask": masks.causal(),
        "normalize": normalize,
    }
    one = torch.eye(k, **draw).expand(2, g, k, k)
    torch.manual_seed(3)
    dropped = regard.attend(query, key, one, dropout=p, impl=impl, **arguments).detach()
    weights = regard.weights(query, key, **arguments)
    keep = (dropped != 0) / (1 - p)
    torch.testing.assert_close(dropped, (weights * keep).detach())
    torch.manual_seed(3)
    out = regard.attend(query, key, value, dropout=p, impl=impl, **arguments)
    expected = (weights * keep) @ value.repeat_interleave(h // g, 1)
    torch.testing.assert_close(out, expected)
    pull = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, pull)
    for grad, other in zip(found, torch.autograd.grad(expected, leaves, pull), strict=True):
        torch.testing.assert_close(grad, other)


def test_reference_and_tiled_drop_the_same_weights(device):
    qkv = [torch.randn(2, 4, 37, 5, device=device, requires_grad=True) for _ in range(3)]
    results = []
    for impl in ("reference", "tiled"):
        torch.manual_seed(11)
        out = regard.attend(*qkv, dropout=0.5, mask=masks.window(4), impl=impl)
        results.append([out, *torch.autograd.grad(out.square().sum(), qkv)])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_checkpointed_call_has_the_same_gradients(impl, device):
    qkv = [torch.randn(2, 3, 19, 5, device=device, requires_grad=True) for _ in range(3)]

    def call(*tensors):
        return regard.attend(*tensors, dropout=0.5, mask=masks.causal(), impl=impl)

    torch.manual_seed(5)
    plain = call(*qkv)
    expected = torch.autograd.grad(plain.square().sum(), qkv)
    torch.manual_seed(5)
    saved = checkpoint(call, *qkv, use_reentrant=False)
    assert torch.equal(saved, plain)
    torch.randn(3, device=device)  # what happens between forward and backward must not matter
    for grad, other in zip(torch.autograd.grad(saved.square().sum(), qkv), expected, strict=True):
        torch.testing.assert_close(grad, other)


def test_returned_weights_and_summaries_are_those_before_dropout(device):
    query, key = (torch.randn(2, 3, n, 5, device=device) for n in (7, 11))
    assert torch.equal(regard.weights(query, key), regard.weights(query, key))
    with pytest.raises(TypeError):
        regard.weights(query, key, dropout=0.5)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_logsumexp_and_empty_rows_do_not_change_with_dropout(impl, device):
    query, key, value = (torch.randn(2, 3, n, 5, device=device) for n in (19, 17, 17))
    out, lse = regard.attend(query, key, value, mask=masks.causal(), dropout=0.5, return_logsumexp=True, impl=impl)
    _, expected = regard.attend(query, key, value, mask=masks.causal(), return_logsumexp=True, impl=impl)
    torch.testing.assert_close(lse, expected)
    assert (out[:, :, :2] == 0).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_what_is_dropped_does_not_depend_on_what_is_hidden_or_on_dtype(impl, device):
    """A hash of the position: the same seed drops the same pairs whatever else changes."""
    value = torch.eye(31, device=device).expand(1, 2, 31, 31)
    query, key = torch.zeros(1, 2, 29, 4, device=device), torch.zeros(1, 2, 31, 4, device=device)
    torch.manual_seed(9)
    whole = regard.attend(query, key, value, dropout=0.5, impl=impl) != 0
    torch.manual_seed(9)
    part = regard.attend(query, key, value, dropout=0.5, mask=masks.window(3), impl=impl) != 0
    seen = masks.window(3).dense(29, 31, device=device)
    assert torch.equal(part, whole & seen)
