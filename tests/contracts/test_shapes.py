"""Three-dimensional inputs are one head, and give three dimensions back."""

import pytest
import torch

import regard
from regard import biases, masks, scores
from tests.contracts.harness import EVERYTHING

B, Q, K, D, V = 3, 17, 19, 5, 7
FROM_THE_RIGHT = [
    (K,),
    (1, K),
    (Q, 1),
    (1, 1),
    (Q, K),
    (2, Q, K),
    (1, Q, K),
    (B, 1, 1, K),
    (1, 2, Q, K),
    (B, 2, Q, K),
    (B, 1, Q, 1),
]


def draw(device):
    return [torch.randn(B, n, m, device=device) for n, m in ((Q, D), (K, D), (K, V))]


@pytest.mark.parametrize("impl", EVERYTHING)
def test_three_dimensions_equal_one_head(impl, device):
    qkv = [x.requires_grad_() for x in draw(device)]
    mask = masks.causal() & masks.lengths(torch.tensor([19, 4, 11], device=device))
    arguments = {
        "mask": mask,
        "bias": biases.relative(torch.randn(1, 9, device=device)),
        "score": scores.additive(torch.randn(1, D, device=device)),
        "sink": torch.randn(1, device=device),
        "return_logsumexp": True,
        "impl": impl,
    }
    out, lse = regard.attend(*qkv, **arguments)
    wide, wide_lse = regard.attend(*(x[:, None] for x in qkv), **arguments)
    assert out.shape == (B, Q, V)
    assert lse.shape == (B, Q)
    torch.testing.assert_close(out, wide[:, 0])
    torch.testing.assert_close(lse, wide_lse[:, 0])
    grads = torch.autograd.grad(out.sum(), qkv)
    expected = torch.autograd.grad(wide.sum(), qkv)
    for grad, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, other)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("shape", [(K,), (1, K), (Q, 1), (Q, K), (1, Q, K), (B, 1, K), (B, Q, K), (B, Q, 1)])
def test_masks_and_biases_broadcast_to_three_dimensions(shape, impl, device):
    qkv = draw(device)
    mask, bias = torch.rand(shape, device=device) > 0.3, torch.randn(shape, device=device)
    found = regard.attend(*qkv, mask=mask, bias=bias, impl=impl)
    mask, bias = mask.expand(B, Q, K)[:, None], bias.expand(B, Q, K)[:, None]
    expected = regard.attend(*(x[:, None] for x in qkv), mask=mask, bias=bias, impl="reference")[:, 0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("shape", FROM_THE_RIGHT, ids=str)
def test_masks_and_biases_broadcast_from_the_right(shape, impl, device):
    qkv = [torch.randn(B, 2, n, m, device=device) for n, m in ((Q, D), (K, D), (K, V))]
    mask, bias = torch.rand(shape, device=device) > 0.3, torch.randn(shape, device=device)
    found = regard.attend(*qkv, mask=mask, bias=bias, impl=impl)
    expected = regard.attend(*qkv, mask=mask.expand(B, 2, Q, K), bias=bias.expand(B, 2, Q, K), impl="reference")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_gaussian_bias_works_without_a_head_axis(impl, device):
    qkv = draw(device)
    center = torch.rand(B, Q, device=device) * K
    found = regard.attend(*qkv, bias=biases.gaussian(center[:, None], 2.0), impl=impl)
    expected = regard.attend(*(x[:, None] for x in qkv), bias=biases.gaussian(center[:, None], 2.0), impl="reference")
    torch.testing.assert_close(found, expected[:, 0])
