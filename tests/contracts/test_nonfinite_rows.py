"""Promise 2 for pairs, in `reference`: a loss on rows that see no NaN does not depend on the rows that do."""

import math

import pytest
import torch

import regard
from regard import masks
from tests.contracts import entries

B, H, G, N, D, V = 2, 4, 2, 11, 5, 3
NONFINITE = 7  # the index of the non-finite key, query or row
MASKS = {
    "causal": (masks.causal(), lambda i, j: j <= i),
    "window": (masks.window(2), lambda i, j: abs(i - j) <= 2),
    "blocks": (masks.blocks(4), lambda i, j: i // 4 == j // 4),
    "tensor": (torch.eye(N, dtype=torch.bool) | (torch.arange(N) < 3), lambda i, j: i == j or j < 3),
}
PLACES = ("query", "key", "value", "bias")
EVERY = {**entries.NORMALIZERS, **entries.CUSTOM_NORMALIZERS}


def draw():
    generator = torch.Generator().manual_seed(3)
    shapes = {"query": (B, H, N, D), "key": (B, G, N, D), "value": (B, G, N, V), "bias": (B, H, N, N), "sink": (H,)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def spoil(leaves, place, number):
    """Put a number into one row of one batch entry; for a bias, into the pair (7, 7)."""
    leaves = {name: x.clone() for name, x in leaves.items()}
    if place == "bias":
        leaves["bias"][1, :, NONFINITE, NONFINITE] = number
    else:
        leaves[place][1, :, NONFINITE] = number
    return leaves


def touched(sees, place):
    """Rows of batch entry 1 that see the non-finite entry."""
    return [i for i in range(N) if (i == NONFINITE if place in ("query", "bias") else sees(i, NONFINITE))]


def gradients(leaves, mask, normalize, pull, with_lse=True, dropout=0.0):
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    torch.manual_seed(11)
    out, lse = regard.attend(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        bias=leaves["bias"],
        sink=leaves["sink"],
        mask=mask,
        normalize=normalize,
        dropout=dropout,
        return_logsumexp=True,
        impl="reference",
    )
    pulls = [pull, pull[..., 0]] if with_lse else [pull]
    return torch.autograd.grad([out, lse][: len(pulls)], list(leaves.values()), pulls, allow_unused=True)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MASKS)
def test_a_loss_on_other_rows_has_the_gradients_of_finite_inputs(name, place, number):
    mask, sees = MASKS[name]
    leaves = draw()
    pull = torch.randn(B, H, N, V, dtype=torch.float64)
    rows = touched(sees, place)
    assert rows and len(rows) < N
    pull[1, :, rows] = 0
    expected = gradients(leaves, mask, "softmax", pull)
    found = gradients(spoil(leaves, place, number), mask, "softmax", pull)
    for leaf, mine, true in zip(leaves, found, expected, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-12, atol=1e-12, msg=leaf)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("normalize", EVERY)
def test_the_same_under_every_normaliser_and_dropout(normalize, dropout):
    mask, sees = MASKS["causal"]
    leaves = draw()
    pull = torch.randn(B, H, N, V, dtype=torch.float64)
    pull[1, :, touched(sees, "key")] = 0
    expected = gradients(leaves, mask, EVERY[normalize][0], pull, dropout=dropout)
    found = gradients(spoil(leaves, "key", math.nan), mask, EVERY[normalize][0], pull, dropout=dropout)
    for leaf, mine, true in zip(leaves, found, expected, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-12, atol=1e-12, msg=leaf)


def test_the_same_for_a_sink_of_one_head():
    mask, leaves = masks.causal(), draw()
    pull = torch.randn(B, H, N, V, dtype=torch.float64)
    pull[:, 2] = 0
    expected = gradients(leaves, mask, "softmax", pull)
    leaves["sink"][2] = math.nan
    for mine, true in zip(gradients(leaves, mask, "softmax", pull), expected, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", PLACES)
def test_a_gradient_that_reaches_a_nonfinite_row_is_not_finite(place):
    """A loss that is NaN must not leave gradients with which training would go on."""
    leaves, pull = draw(), torch.randn(B, H, N, V, dtype=torch.float64)
    found = gradients(spoil(leaves, place, math.nan), masks.causal(), "softmax", pull, with_lse=False)
    assert not all(grad.isfinite().all() for grad in found if grad is not None)


def test_keys_that_a_nonfinite_row_does_not_see_get_no_gradient_from_it():
    """Row 7 sees keys up to 7; its infinite gradient stays with those."""
    leaves, pull = draw(), torch.randn(B, H, N, V, dtype=torch.float64)
    query, key, value, *_ = gradients(spoil(leaves, "query", math.nan), masks.causal(), "softmax", pull)
    assert value[1, :, NONFINITE + 1 :].isfinite().all()
    assert key[1, :, NONFINITE + 1 :].isfinite().all()
    assert query[1, :, :NONFINITE].isfinite().all()
    assert not value[1, :, : NONFINITE + 1].isfinite().all()
    assert all(grad[0].isfinite().all() for grad in (query, key, value))


@pytest.mark.parametrize("normalize", entries.NORMALIZERS)
def test_the_weights_of_other_rows_have_the_gradients_of_finite_inputs(normalize):
    results = []
    for number in (1.0, math.nan):
        leaves = spoil(draw(), "key", number)
        query, key = (leaves[name].requires_grad_() for name in ("query", "key"))
        weights = regard.weights(query, key, mask=masks.causal(), normalize=EVERY[normalize][0])
        loss = (weights[:, :, :NONFINITE] * torch.arange(1.0, N + 1)).sum()
        results.append(torch.autograd.grad(loss, (query, key)))
    for mine, true in zip(*reversed(results), strict=True):
        torch.testing.assert_close(mine, true)
