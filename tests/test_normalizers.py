"""Normalisers by themselves: n(scores, visible) -> weights on complete rows."""

import math

import pytest
import torch

import regard
from regard import normalizers
from tests import oracle

NAMES = ["softmax", "sigmoid", "sparsemax", "entmax15", "hard"]
MAKE = {name: getattr(normalizers, name) for name in NAMES}


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "sparsemax", "entmax15"])
def test_every_normalizer_has_the_gradient_of_its_definition(name):
    seen = torch.rand(5, 11) > 0.3
    seen[2] = False
    scores, pull = draw(5, 11).requires_grad_(), draw(5, 11)
    (found,) = torch.autograd.grad(MAKE[name]()(scores, seen), scores, pull)
    (expected,) = torch.autograd.grad(oracle.EXACT[name](scores, seen), scores, pull)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(lambda s: MAKE[name]()(s, seen), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: MAKE[name]()(s, seen), (scores,))


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_anything_visible_are_zero(name):
    scores, seen = draw(4, 7).requires_grad_(), torch.ones(4, 7, dtype=torch.bool)
    seen[0] = False
    with torch.no_grad():
        scores[1] = -math.inf
    weights = MAKE[name]()(scores, seen)
    assert (weights[:2] == 0).all()
    assert (weights[2:].sum(-1) > 0).all()
    if weights.requires_grad:
        (grad,) = torch.autograd.grad(weights.square().sum(), scores)
        assert grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_in_a_row_gives_nan_and_a_hidden_nan_does_not(name):
    scores, seen = draw(3, 7), torch.ones(3, 7, dtype=torch.bool)
    scores[0, 2] = math.nan
    scores[1, 2] = math.nan
    seen[1, 2] = False
    weights = MAKE[name]()(scores, seen)
    assert weights[0].isnan().any()
    assert weights[1:].isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "hard"])
def test_weights_of_a_row_sum_to_one_and_do_not_change_with_a_constant(name):
    scores, seen = draw(5, 11) * 3, torch.rand(5, 11) > 0.2
    weights = MAKE[name]()(scores, seen)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(MAKE[name]()(scores + 7, seen), weights)


def test_hard_takes_the_lowest_index_on_ties_and_passes_no_gradient_to_scores():
    scores = torch.tensor([[1.0, 5.0, 5.0, 5.0], [2.0, 2.0, 2.0, 9.0]], requires_grad=True)
    seen = torch.tensor([[True] * 4, [True, True, True, False]])
    weights = normalizers.hard()(scores, seen)
    assert weights.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    if weights.requires_grad:
        (grad,) = torch.autograd.grad(weights.sum(), scores)
        assert (grad == 0).all()


@pytest.mark.parametrize("impl", ["reference", "tiled", "auto"])
def test_hard_passes_gradient_to_the_chosen_value_only(impl, device):
    query, key, value = (torch.randn(2, 3, n, 5, device=device, requires_grad=True) for n in (7, 11, 11))
    out = regard.attend(query, key, value, normalize="hard", impl=impl)
    weights = regard.weights(query, key, normalize="hard")
    grads = torch.autograd.grad(out, [query, key, value], torch.ones_like(out), allow_unused=True)
    assert all(grad is None or (grad == 0).all() for grad in grads[:2])
    torch.testing.assert_close(grads[2], weights.sum(2)[..., None].expand(2, 3, 11, 5))


@pytest.mark.parametrize("impl", ["reference", "tiled", "auto"])
def test_hard_ties_go_to_the_lowest_index_in_attention(impl, device):
    query, key = torch.ones(1, 1, 2, 3, device=device), torch.ones(1, 1, 400, 3, device=device)
    value = torch.arange(400.0, device=device)[None, None, :, None]
    mask = torch.ones(2, 400, dtype=torch.bool, device=device)
    mask[1, :7] = False
    assert regard.attend(query, key, value, normalize="hard", mask=mask, impl=impl).flatten().tolist() == [0, 7]


def test_sparsemax_is_a_threshold_in_a_small_case():
    weights = normalizers.sparsemax()(torch.tensor([[1.0, 0.5, -1.0]]), torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.tensor([[0.75, 0.25, 0.0]]))


def test_sparse_weights_are_exactly_zero_outside_their_support():
    scores = torch.tensor([[10.0, 0.0, -3.0]])
    for name in ("sparsemax", "entmax15"):
        assert MAKE[name]()(scores, torch.ones(1, 3, dtype=torch.bool)).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("wrong", ["sofmax", "entmax", "gumbel", 3, None, torch.softmax])
def test_an_unknown_normalizer_is_refused_with_the_known_ones(wrong):
    query = torch.randn(2, 3, 5, 4)
    with pytest.raises(regard.RegardError, match="normalize") as caught:
        regard.attend(query, query, query, normalize=wrong)
    assert "softmax" in str(caught.value)
    assert isinstance(caught.value, (ValueError, TypeError))


class Uniform(normalizers.Normalizer):
    """Equal weight to whatever is visible, whatever the scores."""

    def __call__(self, scores, visible):
        count = visible.sum(-1, keepdim=True).clamp(min=1)
        return (visible / count).to(scores.dtype)


class Tempered(normalizers.Normalizer):
    """A softmax with a temperature, to see that a normaliser keeps its own state."""

    def __init__(self, temperature):
        self.temperature = temperature

    def __call__(self, scores, visible):
        return normalizers.softmax()(scores / self.temperature, visible)


@pytest.mark.parametrize("impl", ["reference", "tiled", "auto"])
def test_a_class_of_the_user_is_a_normalizer(impl, device):
    query, key, value = (torch.randn(2, 3, n, 5, device=device) for n in (7, 11, 11))
    mask = regard.masks.causal()
    out = regard.attend(query, key, value, normalize=Uniform(), mask=mask, impl=impl)
    seen = mask.dense(7, 11, device=device).float()
    torch.testing.assert_close(out, (seen / seen.sum(-1, keepdim=True)) @ value)


@pytest.mark.parametrize("impl", ["reference", "tiled", "auto"])
def test_a_normalizer_of_the_user_may_have_parameters(impl, device):
    qkv = [torch.randn(2, 3, n, 5, device=device, requires_grad=True) for n in (7, 11, 11)]
    for temperature in (0.5, 3.0):
        out = regard.attend(*qkv, normalize=Tempered(temperature), impl=impl)
        expected = regard.attend(*qkv, scale=1 / math.sqrt(5) / temperature, impl="reference")
        torch.testing.assert_close(out, expected)
        found = torch.autograd.grad(out.square().sum(), qkv)
        for grad, other in zip(found, torch.autograd.grad(expected.square().sum(), qkv), strict=True):
            torch.testing.assert_close(grad, other, rtol=1e-4, atol=1e-5)
