"""Promise 1: a query that may attend to nothing gets zeros, and nothing becomes NaN because of it."""

import math

import pytest
import torch

import regard
from regard import biases, masks, scores
from tests import oracle
from tests.contracts.entries import CUSTOM_NORMALIZERS, NORMALIZERS
from tests.contracts.harness import EVERYTHING

B, H, Q, K, D, V = 2, 3, 17, 19, 5, 7
EVERY = {**NORMALIZERS, **CUSTOM_NORMALIZERS}


def draw(device, q=Q, k=K, dtype=torch.float32):
    shapes = [(B, H, q, D), (B, H, k, D), (B, H, k, V)]
    return [torch.randn(shape, dtype=dtype).to(device).requires_grad_() for shape in shapes]


def run(qkv, impl, **arguments):
    """Output, logsumexp and the gradients of q, k, v, all rows pulled with ones."""
    out, lse = regard.attend(*qkv, impl=impl, return_logsumexp=True, **arguments)
    grads = torch.autograd.grad([out, lse], qkv, [torch.ones_like(out), torch.ones_like(lse)], allow_unused=True)
    return out, lse, [torch.zeros_like(x) if g is None else g for x, g in zip(qkv, grads, strict=True)]


def assert_rows_are_empty(out, lse, grads, rows):
    assert (out[:, :, rows] == 0).all()
    assert (lse[:, :, rows] == -math.inf).all()
    assert (grads[0][:, :, rows] == 0).all()
    for grad in grads:
        assert grad.isfinite().all()
    others = [i for i in range(out.shape[2]) if i not in rows]
    assert (out[:, :, others] != 0).all()
    assert lse[:, :, others].isfinite().all()


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", EVERY)
def test_rows_of_a_bool_mask_without_true_are_zero(normalize, impl, device):
    mask = torch.ones(Q, K, dtype=torch.bool, device=device)
    mask[3] = mask[11] = False
    result = run(draw(device), impl, mask=mask, normalize=EVERY[normalize][0])
    assert_rows_are_empty(*result, rows=[3, 11])


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_rows_whose_bias_is_minus_infinity_are_zero(normalize, impl, device):
    bias = torch.randn(Q, K, device=device)
    bias[3] = bias[11] = -math.inf
    bias.requires_grad_()
    qkv = draw(device)
    out, lse = regard.attend(*qkv, bias=bias, normalize=EVERY[normalize][0], impl=impl, return_logsumexp=True)
    grads = torch.autograd.grad([out, lse], [*qkv, bias], [torch.ones_like(out), torch.ones_like(lse)])
    assert_rows_are_empty(out, lse, grads[:3], rows=[3, 11])
    assert grads[3].isfinite().all()
    assert (grads[3][[3, 11]] == 0).all()


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_bias_row_of_the_lowest_number_is_not_empty(dtype, impl, device):
    """In float64, too, the lowest float32 or bfloat16 swallows the scores: those rows are uniform."""
    qkv = draw(device, dtype=dtype)
    bias = torch.zeros(Q, K, dtype=dtype, device=device)
    bias[3] = torch.finfo(dtype).min
    out = regard.attend(*qkv, bias=bias, impl=impl)
    exact = oracle.attend(*(x.detach().double().cpu() for x in qkv), bias=bias.double().cpu())[0]
    if dtype != torch.float16:
        torch.testing.assert_close(exact[:, :, 3], qkv[2].detach().double().cpu().mean(2))
    torch.testing.assert_close(out.double().cpu(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


def lowest(device, rows=slice(3, 4)):
    bias = torch.zeros(Q, K, device=device)
    bias[rows] = torch.finfo(torch.float32).min
    return biases.dense(bias)


def table(device):
    return biases.relative(torch.full((1, 3), torch.finfo(torch.float32).min, device=device))


# Biases of finite numbers whose sum, or whose square, leaves float32.
BELOW_FLOAT32 = {
    "two dense ones": (lambda device: lowest(device) + lowest(device), [3]),
    "dense, table and slope": (lambda device: lowest(device) + table(device) + biases.alibi(H), [3]),
    "a centre far away": (lambda device: biases.gaussian(torch.full((1, 1, 1), 1e20, device=device), 2.0), range(Q)),
    "a centre far away and a table": (
        lambda device: biases.gaussian(torch.full((1, 1, 1), -1e30, device=device), 1.0) + table(device),
        range(Q),
    ),
}


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("name", BELOW_FLOAT32)
def test_finite_biases_that_add_up_to_less_than_the_lowest_number_empty_no_row(name, impl, device):
    bias, rows = BELOW_FLOAT32[name][0](device), list(BELOW_FLOAT32[name][1])
    *qkv, learned = *draw(device), [tensor.requires_grad_() for tensor in bias.tensors]
    out = regard.attend(*qkv, bias=bias, impl=impl)
    mean = qkv[2].detach().mean(2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out[:, :, rows], mean[:, :, rows])
    for grad in torch.autograd.grad(out.sin().sum(), [*qkv, *learned]):
        assert grad.isfinite().all()


@pytest.mark.parametrize("impl", EVERYTHING)
def test_the_gradient_of_biases_below_the_lowest_number_is_that_of_one(impl, device):
    qkv = [part.detach() for part in draw(device)]
    grads = []
    for count in (1, 2):
        bias, added = lowest(device), biases.dense(torch.zeros(1, K, device=device).requires_grad_())
        total = bias + added if count == 1 else bias + (lowest(device) + added)
        out = regard.attend(*qkv, bias=total, impl=impl)
        grads.append(torch.autograd.grad(out[:, :, 3].sin().sum(), added.tensor)[0])
    assert (grads[0] != 0).all()
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_bias_of_minus_infinity_outside_what_the_mask_shows_empties_the_row(impl, device):
    bias = torch.zeros(Q, K, device=device)
    bias[5, :9] = -math.inf
    mask = torch.ones(Q, K, dtype=torch.bool, device=device)
    mask[5, 9:] = False
    assert_rows_are_empty(*run(draw(device), impl, mask=mask, bias=bias), rows=[5])


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_an_empty_row_stays_zero_with_a_sink_and_the_sink_gets_no_nan(normalize, impl, device):
    sink = torch.randn(H, device=device, requires_grad=True)
    qkv = draw(device, q=23, k=17)
    out, lse = regard.attend(
        *qkv, mask=masks.causal(), sink=sink, normalize=EVERY[normalize][0], impl=impl, return_logsumexp=True
    )
    assert (out[:, :, :6] == 0).all()
    assert (lse[:, :, :6] == -math.inf).all()
    loss = out.sum() + lse[:, :, 6:].sum()
    for grad in torch.autograd.grad(loss, [*qkv, sink], allow_unused=True):
        assert grad is None or grad.isfinite().all()


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", EVERY)
def test_everything_hidden_is_zero_everywhere(normalize, impl, device):
    qkv = draw(device)
    out, lse, grads = run(qkv, impl, mask=~masks.full(), normalize=EVERY[normalize][0])
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_one_sample_of_a_batch_without_any_key_is_zero(impl, device):
    mask = masks.lengths(torch.tensor([0, 13], device=device))
    qkv = draw(device)
    out, _, grads = run(qkv, impl, mask=mask)
    assert (out[0] == 0).all()
    assert all((grad[0] == 0).all() for grad in grads)
    clean = oracle.attend(*(x[1:, :, :].double().cpu() for x in qkv), seen=torch.arange(K) < 13)[0]
    torch.testing.assert_close(out[1:].double().cpu(), clean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_empty_rows_leave_the_gradients_of_weights_and_biases_finite(impl, device):
    weight = torch.randn(H, D, device=device, requires_grad=True)
    table = torch.randn(H, 9, device=device, requires_grad=True)
    qkv = draw(device, q=23, k=17)
    out = regard.attend(
        *qkv, score=scores.additive(weight), bias=biases.relative(table), mask=masks.causal(), impl=impl
    )
    for grad in torch.autograd.grad(out.square().sum(), [*qkv, weight, table]):
        assert grad.isfinite().all()
        assert (grad != 0).any()


def test_sdpa_gives_zeros_to_rows_without_a_key(device):
    for mask in (masks.lengths(torch.tensor([0, 13], device=device)), masks.causal()):
        qkv = draw(device, q=23, k=17)
        expected = regard.attend(*qkv, mask=mask, impl="reference")
        found = regard.attend(*qkv, mask=mask, impl="sdpa")
        torch.testing.assert_close(found, expected)
        assert torch.equal(found == 0, expected == 0)
        for grad in torch.autograd.grad(found.sum(), qkv):
            assert grad.isfinite().all()
