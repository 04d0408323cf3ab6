"""Promise 7's last clause: where the plain formula leaves its dtype, the answer is that of float32, rounded."""

import math

import pytest
import torch

import regard
from regard import masks, scores
from tests import oracle
from tests.contracts.harness import EVERYTHING

HALVES = [torch.float16, torch.bfloat16]
B, H, G, Q, K, D, V = 2, 4, 2, 5, 37, 16, 8


def draw(dtype, factor=1.0):
    query, key = torch.randn(B, H, Q, D) * factor, torch.randn(B, G, K, D) * factor
    return [x.to(dtype) for x in (query, key, torch.randn(B, G, K, V))]


def by_strength(strength):
    return lambda q, k, s, t: oracle.cosine(q, k, s, {"strength": strength})


def by_weight(weight):
    return lambda q, k, s, t: oracle.general(q, k, s, {"weight": weight.to(q.dtype)})


EYE = torch.eye(D) * 3e4
PER_HEAD = torch.eye(D).repeat(H, 1, 1) * torch.tensor([1e3, 3e4, -2e4, 6e4])[:, None, None]
STRENGTHS = torch.tensor([1e5, -1e6, 3e4, 1.0])
# name: (score, its definition, scale, factor of queries and keys)
SCORES = {
    "general": (lambda t: scores.general(EYE.to(t)), by_weight(EYE), None, 1.0),
    "general per head": (lambda t: scores.general(PER_HEAD.to(t)), by_weight(PER_HEAD), None, 1.0),
    "cosine": (lambda t: scores.cosine(1e6), by_strength(1e6), None, 1.0),
    "cosine per head": (lambda t: scores.cosine(STRENGTHS), by_strength(STRENGTHS.double()), None, 1.0),
    "dot": (lambda t: scores.dot(), oracle.dot, None, 100.0),
    "scaled dot": (lambda t: scores.scaled_dot(), oracle.scaled_dot, None, 1000.0),
    "a large scale": (lambda t: scores.dot(), oracle.dot, 1e6, 1.0),
    "softcap": (lambda t: scores.softcap(1e5), lambda q, k, s, t: oracle.softcap(q, k, s, {"cap": 1e5}), None, 1e3),
}


def cases(dtype, name):
    build, formula, scale, factor = SCORES[name]
    query, key, value = draw(dtype, factor)
    score = build(dtype)
    if isinstance(score, scores.general(EYE).__class__):  # the weight as the dtype holds it
        formula = by_weight(score.weight)
    exact = oracle.attend(query.double(), key.double(), value.double(), score=formula, scale=scale)
    return (query, key, value), score, scale, exact


def assert_as_float32(found, exact, dtype, largest):
    """Scores of `largest` are rounded to float32, the result to `dtype`."""
    slack = 8 * largest * torch.finfo(torch.float32).eps
    bound = 4 * torch.finfo(dtype).eps * exact.abs().max() + 4 * min(slack, 1.0) * exact.abs().max()
    assert found.isfinite().all()
    assert (found.double() - exact).abs().max() <= bound


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("name", SCORES)
def test_float16_that_overflows_is_computed_in_float32(name, impl):
    if impl == "sdpa" and name == "softcap":
        return  # torch's kernels have no cap
    qkv, score, scale, (out, _, _, all_scores) = cases(torch.float16, name)
    assert all_scores.abs().max() > torch.finfo(torch.float16).max
    found = regard.attend(*qkv, score=score, scale=scale, impl=impl)
    assert found.dtype == torch.float16
    assert_as_float32(found, out, torch.float16, all_scores.abs().max().item())


@pytest.mark.parametrize("name", SCORES)
def test_weights_and_summaries_of_float16_do_not_overflow(name):
    (query, key, _), score, scale, (_, lse, weights, all_scores) = cases(torch.float16, name)
    largest = all_scores.abs().max().item()
    assert_as_float32(regard.weights(query, key, score=score, scale=scale), weights, torch.float16, largest)
    summary = regard.summarize(query, key, score=score, scale=scale)
    torch.testing.assert_close(summary.logsumexp.double(), lse, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(summary.received.double(), weights.mean(2), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["general", "cosine"])
def test_gradients_of_float16_that_overflows_are_finite(name):
    for impl in (*EVERYTHING, "sdpa"):
        qkv, score, scale, _ = cases(torch.float16, name)
        leaves = [x.requires_grad_() for x in qkv]
        out = regard.attend(*leaves, score=score, scale=scale, mask=masks.lengths(torch.tensor([K, 20])), impl=impl)
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves)), impl


@pytest.mark.parametrize("name", SCORES)
def test_bfloat16_has_the_range_of_float32(name):
    qkv, score, scale, _ = cases(torch.bfloat16, name)
    for impl in ("auto", "tiled"):
        assert regard.attend(*qkv, score=score, scale=scale, impl=impl).isfinite().all()


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.lengths(torch.tensor([37, 20]))], ids=str)
@pytest.mark.parametrize("scale", [-0.7, 0.0, -0.0, 1e-42, -1e-300, -1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
def test_a_scale_of_zero_or_below_masks_what_it_should(dtype, scale, mask, impl):
    """torch's kernels mask before they scale, which turns −inf into NaN or +inf."""
    qkv = [torch.randn(2, 3, 37, 8).to(dtype).requires_grad_() for _ in range(3)]
    seen = torch.ones(()).bool() if mask is None else mask.dense(37, 37, batch=2)
    exact_leaves = [x.detach().double().requires_grad_() for x in qkv]
    exact = oracle.attend(*exact_leaves, seen=seen, scale=scale)[0]
    found = regard.attend(*qkv, mask=mask, scale=scale, impl=impl)
    grads = torch.autograd.grad(found.sum(), qkv), torch.autograd.grad(exact.sum(), exact_leaves)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
    if abs(scale) < 1e3:  # beyond, gradients of scores that nearly tie are as large as the scale
        for mine, true in zip(*grads, strict=True):
            torch.testing.assert_close(mine.double(), true, rtol=tolerance, atol=tolerance * math.sqrt(37))
