"""Promise 7: no worse than twice (gradients three times) the plain formula, also at the edges of a dtype."""

import math
from functools import cache

import pytest
import torch

import regard
from regard import masks, scores
from tests import oracle
from tests.contracts import entries
from tests.contracts.entries import Sizes
from tests.contracts.harness import EVERYTHING, Case, assert_within, check
from tests.contracts.orders import LETTERS, ORIGINAL, draw_order

INPUTS = ("query", "key", "value")
HALVES = [torch.float32, torch.bfloat16, torch.float16]


def by_oracle(qkv, pull, dtype, arguments, order=ORIGINAL):
    """The formula in a dtype, summed in an order: output and gradients in the original order."""
    leaves = [
        order.apply(x.detach().cpu(), LETTERS[name]).to(dtype).requires_grad_()
        for name, x in zip(INPUTS, qkv, strict=True)
    ]
    seen = arguments.get("seen")
    if seen is not None:
        arguments = {**arguments, "seen": order.apply(seen, "bhqk")}
    out = oracle.attend(*leaves, **arguments)[0]
    grads = torch.autograd.grad(out, leaves, order.apply(pull, "bhqv").to(out))
    results = zip(("out", *INPUTS), [out.detach(), *grads], strict=True)
    return [order.undo(x, LETTERS[name]) for name, x in results]


def compare(qkv, impl, exact_arguments, **arguments):
    """Output and gradients against float64; the plain formula in float32 and rounded, as where it overflows.

    torch's fused backward recomputes the weights from a rounded logsumexp and takes Σ_j p_j dp_j from the rounded
    output. Weights are then off by the rounding of a score, and where the gradients of q and k cancel, a rounding
    of what cancelled remains. That much, and only where `sdpa` runs, is allowed on top.
    """
    dtype = qkv[0].dtype
    (b, h, q, d), (_, g, k, _), v = qkv[0].shape, qkv[1].shape, qkv[2].shape[3]
    pull = torch.randn(b, h, q, v).to(dtype)
    leaves = [x.detach().clone().requires_grad_() for x in qkv]
    out = regard.attend(*leaves, impl=impl, **arguments)
    found = [out.detach(), *torch.autograd.grad(out, leaves, pull.to(out))]
    exact = by_oracle(qkv, pull, torch.float64, exact_arguments)
    sizes = Sizes(b, h, g, q, k, d, v)

    @cache
    def plain(number):
        order = draw_order(sizes, number, "bhgqkv") if number else ORIGINAL
        return by_oracle(qkv, pull, torch.float32, exact_arguments, order)

    slack = {}
    if impl == "sdpa" or (impl == "auto" and regard.explain(*qkv, **arguments).impl == "sdpa"):
        exact_leaves = [x.detach().double().cpu() for x in qkv]
        largest = oracle.attend(*exact_leaves, **exact_arguments)[3].abs().max().item()
        query, key, value = (x.abs().max().item() for x in exact_leaves)
        eps = torch.finfo(torch.float32).eps
        cancelled = eps * value * pull.abs().sum(-1).max().item() / exact_leaves[0].shape[-1] ** 0.5
        weights_off = 2 * eps * largest * exact[3].abs().max().item()
        slack = {"query": cancelled * key, "key": cancelled * query, "value": weights_off}
    for number, name in enumerate(["out", *INPUTS]):
        assert found[number].isfinite().all(), name
        assert_within(
            found[number],
            exact[number],
            lambda order, number=number: plain(order)[number].to(dtype),
            2 if name == "out" else 3,
            name,
            slack.get(name, 0.0),
        )


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_queries_and_keys_of_a_hundred_do_not_overflow(dtype, impl, device):
    """q·k reaches 640,000: beyond float16, and a softmax of almost one key."""
    shape = (2, 3, 37, 64)
    query, key = ((torch.randn(shape) * 100).to(device, dtype) for _ in range(2))
    value = torch.randn(shape).to(device, dtype)
    compare((query, key, value), impl, {})


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_bfloat16_of_133120_everywhere_stays_finite(impl, device):
    """torch's own regression: every score is the same enormous number, so every weight is 1/k."""
    x = torch.full((1, 2, 17, 5), 133120.0, dtype=torch.bfloat16, device=device)
    for mask in (None, masks.causal()):
        assert torch.equal(regard.attend(x, x, x, mask=mask, impl=impl), x)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("score", entries.SCORES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_score_is_as_exact_as_its_formula(score, dtype, impl, device):
    check(
        Case(score=score, dtype=dtype, mask="causal", sizes=Sizes(b=1, h=2, g=1, q=41, k=53, d=32, v=11)), impl, device
    )


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("magnitude", [3.0, 12.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_additive_is_exact_at_any_magnitude(dtype, magnitude, impl, device):
    """tanh through e^{2q}·e^{2k} overflows from 44 on and cancels near zero; queries and keys opposite in sign."""
    torch.manual_seed(3)
    query = torch.randn(2, 1, 23, 5) * magnitude
    key = -query[:, :, torch.randperm(23)] + torch.randn(2, 1, 23, 5)
    value, weight = torch.randn(2, 1, 23, 7), torch.randn(5)
    qkv = [x.to(device, dtype) for x in (query, key, value)]
    weight = weight.to(device, dtype)
    compare(
        qkv,
        impl,
        {"score": lambda q, k, s, t: oracle.additive(q, k, s, {"weight": weight.cpu().to(q.dtype)})},
        score=scores.additive(weight),
    )


@pytest.mark.parametrize("impl", EVERYTHING)
def test_additive_is_exact_near_zero(impl, device):
    """1 − 2/(e^{2x} + 1) loses everything when x is small; the score must still be the sum."""
    for magnitude in (1e-2, 1e-4, 1e-6):
        query, key = torch.randn(1, 1, 13, 5) * magnitude, torch.randn(1, 1, 17, 5) * magnitude
        value, weight = torch.randn(1, 1, 17, 7), torch.randn(5) / magnitude
        compare(
            [x.to(device) for x in (query, key, value)],
            impl,
            {"score": lambda q, k, s, t, w=weight: oracle.additive(q, k, s, {"weight": w.to(q.dtype)})},
            score=scores.additive(weight.to(device)),
        )


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", ["softmax", "sparsemax", "entmax15", "sigmoid"])
def test_large_scores_neither_overflow_nor_lose_the_largest(normalize, impl, device):
    query, key = torch.randn(32, 3, 13, 5) * 5, torch.randn(32, 3, 17, 5) * 5
    value = torch.randn(32, 3, 17, 7)
    compare(
        [x.to(device) for x in (query, key, value)], impl, {"normalizer": oracle.EXACT[normalize]}, normalize=normalize
    )


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_a_sample_with_one_visible_key_is_as_exact(impl, device):
    """Its weights are all 1, and the gradients of its queries and key are exactly 0."""
    qkv = [torch.randn(2, 2, n, 29).to(device) for n in (131, 523, 523)]
    seen = (torch.arange(523) < torch.tensor([[523], [1]]))[:, None, None]
    compare(qkv, impl, {"seen": seen}, mask=masks.lengths(torch.tensor([523, 1], device=device)))


@pytest.mark.parametrize("normalize", ["softmax", "sparsemax", "entmax15"])
def test_weights_are_not_negative_and_sum_to_one(normalize, device):
    for n in (7, 131, 1031):
        query, key = torch.randn(1, 2, 5, 16, device=device), torch.randn(1, 2, n, 16, device=device)
        weights = regard.weights(query, key, normalize=normalize)
        assert (weights >= 0).all()
        assert (weights.double().sum(-1) - 1).abs().max() <= 4 * torch.finfo(torch.float32).eps * math.sqrt(n)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_longer_rows_are_as_exact(dtype, mask, impl, device):
    sizes = Sizes(b=3, h=2, g=1, q=523 if mask == "causal" else 131, k=523, d=64, v=29)
    check(Case(dtype=dtype, mask=mask, sizes=sizes), impl, device, with_lse=False)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_one_query_over_a_grid_of_many_keys_works(impl, device):
    """2^16 + 1 keys, more than one grid axis of a GPU may count."""
    k = 2**16 + 1
    query, key, value = (torch.randn(1, 1, n, 4, device=device) for n in (3, k, k))
    exact = oracle.attend(*(x.double().cpu() for x in (query, key, value)))[0]
    found = regard.attend(query, key, value, impl=impl)
    torch.testing.assert_close(found.double().cpu(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_autocast_casts_as_torch_does(impl, device):
    query, key, value = (torch.randn(2, 3, 19, 8, device=device) for _ in range(3))
    with torch.autocast(device, dtype=torch.bfloat16):
        found = regard.attend(query, key, value, mask=masks.causal(), impl=impl)
    assert found.dtype == torch.bfloat16
    cast = [x.bfloat16() for x in (query, key, value)]
    torch.testing.assert_close(found, regard.attend(*cast, mask=masks.causal(), impl=impl))
    with torch.autocast(device, dtype=torch.bfloat16):
        mixed = regard.attend(query.bfloat16(), key, value.bfloat16(), mask=masks.causal(), impl=impl)
    torch.testing.assert_close(mixed, found)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_autocast_casts_the_bias_and_gradients_come_back_in_float32(impl, device):
    leaves = [torch.randn(s, device=device, requires_grad=True) for s in [(2, 3, 19, 8)] * 3 + [(19, 19)]]
    with torch.autocast(device, dtype=torch.bfloat16):
        out = regard.attend(*leaves[:3], bias=leaves[3], impl=impl)
    assert out.dtype == torch.bfloat16
    for leaf, grad in zip(leaves, torch.autograd.grad(out.float().sum(), leaves), strict=True):
        assert grad.dtype == leaf.dtype == torch.float32
        assert grad.isfinite().all()


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=str)
def test_autocast_leaves_float64_alone_as_torch_does(mask, impl, device):
    """Whoever uses float64 wants it: tests, scientific code."""
    query, key, value = (torch.randn(2, 3, 19, 8, device=device, dtype=torch.float64) for _ in range(3))
    exact = oracle.attend(query.cpu(), key.cpu(), value.cpu(), seen=None if mask is None else mask.dense(19, 19))[0]
    with torch.autocast(device, dtype=torch.bfloat16):
        found = regard.attend(query, key, value, mask=mask, impl=impl)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.cpu(), exact, rtol=1e-12, atol=1e-12)


def test_autocast_leaves_a_float64_bias_and_sink_alone(device):
    query, key, value = (torch.randn(2, 3, 19, 8, device=device, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(19, 19, device=device, dtype=torch.float64)
    sink = torch.randn(3, device=device, dtype=torch.float64)
    plain = regard.attend(query, key, value, bias=bias, sink=sink)
    summary = regard.summarize(query, key, bias=bias, sink=sink)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(regard.attend(query, key, value, bias=bias, sink=sink), plain)
        assert regard.weights(query, key, bias=bias, sink=sink).dtype == torch.float64
        assert torch.equal(regard.summarize(query, key, bias=bias, sink=sink).entropy, summary.entropy)


def test_autocast_does_not_mix_float64_with_what_it_casts(device):
    """torch raises there too: autocast would cast one to bfloat16 and leave the other."""
    wide, narrow = torch.randn(1, 2, 17, 8, device=device).double(), torch.randn(1, 2, 17, 8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        for query, key, value in ((wide, narrow, narrow), (narrow, wide, narrow), (narrow, narrow, wide)):
            with pytest.raises(TypeError, match="autocast leaves float64"):
                regard.attend(query, key, value)
        with pytest.raises(TypeError, match="bias"):
            regard.attend(narrow, narrow, narrow, bias=torch.zeros(17, 17, device=device, dtype=torch.float64))
        assert regard.attend(narrow.half(), narrow, narrow.bfloat16()).dtype == torch.bfloat16
