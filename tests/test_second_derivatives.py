"""Second derivatives: exact through reference and tiled, a clear refusal from torch's kernels."""

from dataclasses import replace

import pytest
import torch

import regard
from regard import biases, masks, scores
from tests.contracts import entries
from tests.contracts.harness import Case, request

EXACT = ["reference", "tiled"]
SIZES = entries.Sizes(b=1, h=2, g=1, q=4, k=3, d=2, v=2)  # more queries than keys: causal has an empty row
CASES = {
    "softmax": Case(mask="causal", sizes=SIZES),
    "sigmoid additive": Case(mask="causal", normalize="sigmoid", score="additive", sizes=SIZES),
    "entmax15 relative": Case(mask="causal", normalize="entmax15", bias="relative", sizes=SIZES),
    "sparsemax general": Case(mask="causal", normalize="sparsemax", score="general per head", sizes=SIZES),
    "softcap sink": Case(mask="causal", score="softcap", sink=True, sizes=SIZES),
    "gaussian": Case(mask="causal", bias="gaussian", sizes=SIZES),
    "cosine t5": Case(mask="causal", score="cosine per head", bias="t5", sizes=SIZES),
    "transformer_xl": Case(mask="causal", score="transformer_xl", sizes=SIZES),
    "concat": Case(mask="causal", score="concat", sizes=SIZES),
}


def function(name, impl, device):
    """A function of the leaves of a case, and those leaves."""
    case = CASES[name]
    _, _, found = request(replace(case, dtype=torch.float64), device)
    leaves = {name: x for name, x in found.items() if x.requires_grad}

    def call(*tensors):
        now = {**found, **dict(zip(leaves, tensors, strict=True))}
        parts = {
            kind: {n.removeprefix(kind + " "): x for n, x in now.items() if n.startswith(kind + " ")}
            for kind in ("score", "bias")
        }
        out, lse = regard.attend(
            now["query"],
            now["key"],
            now["value"],
            score=entries.SCORES[case.score].build(parts["score"]),
            bias=entries.BIASES[case.bias].build(parts["bias"], case.sizes),
            mask=entries.MASKS[case.mask].build(case.sizes, device)[0],
            normalize=case.normalize,
            sink=now.get("sink"),
            return_logsumexp=True,
            impl=impl,
        )
        return out, torch.where(lse.isfinite(), lse, 0.0)

    return call, tuple(leaves.values())


@pytest.mark.parametrize("impl", EXACT)
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_those_of_finite_differences(name, impl, device):
    assert torch.autograd.gradgradcheck(*function(name, impl, device))


@pytest.mark.parametrize("impl", EXACT)
def test_a_gradient_penalty_trains(impl, device):
    query, key, value = (
        torch.randn(2, 3, n, 5, dtype=torch.float64, device=device, requires_grad=True) for n in (7, 11, 11)
    )
    mask = masks.lengths(torch.tensor([0, 6], device=device))  # one sample without any key
    weight = torch.randn(5, dtype=torch.float64, device=device, requires_grad=True)
    out = regard.attend(query, key, value, mask=mask, score=scores.additive(weight), bias=biases.alibi(3), impl=impl)
    grads = torch.autograd.grad(out.square().sum(), (query, key, value), create_graph=True)
    penalty = sum(grad.square().sum() for grad in grads)
    for grad in torch.autograd.grad(penalty, (query, key, value, weight)):
        assert grad.isfinite().all()
        assert (grad != 0).any()


@pytest.mark.parametrize("impl", EXACT)
def test_third_derivatives_exist(impl, device):
    x = torch.randn(1, 1, 3, 2, dtype=torch.float64, device=device, requires_grad=True)
    grad = regard.attend(x, x, x, impl=impl).sum()
    for _ in range(3):
        (grad,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
    assert grad.isfinite().all()
    assert (grad != 0).any()


@pytest.mark.parametrize("impl", EXACT)
def test_second_derivatives_with_dropout_use_the_same_dropped_weights(impl, device):
    query, key, value = (
        torch.randn(1, 2, n, 3, dtype=torch.float64, device=device, requires_grad=True) for n in (4, 5, 5)
    )

    def call(q, k, v):
        torch.manual_seed(4)
        return regard.attend(q, k, v, dropout=0.4, impl=impl)

    assert torch.autograd.gradcheck(call, (query, key, value))
    assert torch.autograd.gradgradcheck(call, (query, key, value))


def test_sdpa_refuses_a_second_derivative_and_names_the_reference(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16  # on a GPU sdpa refuses float32
    shape = (2, 3, 19, 8)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    with pytest.raises(regard.RegardError, match='impl="reference"'):
        out = regard.attend(query, key, value, impl="sdpa")
        (grad,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
        torch.autograd.grad(grad.sum(), query)


@pytest.mark.parametrize("impl", ["reference", "tiled"])
def test_a_recorded_gradient_is_right_when_one_input_is_made_of_another(impl):
    x = torch.randn(1, 1, 5, 3, dtype=torch.float64, requires_grad=True)

    def loss():
        return regard.attend(x, 2 * x, 3 * x, impl=impl, mask=regard.masks.causal()).square().sum()

    plain = torch.autograd.grad(loss(), x)[0]
    recorded = torch.autograd.grad(loss(), x, create_graph=True)[0]
    assert torch.allclose(plain, recorded, atol=1e-12)
    # The second derivative, against finite differences of the first.
    direction = torch.randn_like(x)
    second = torch.autograd.grad((recorded * direction).sum(), x)[0]
    step = 1e-6
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            moved = x + sign * step * direction
        moved.requires_grad_()
        out = regard.attend(moved, 2 * moved, 3 * moved, impl="reference", mask=regard.masks.causal())
        ends.append(torch.autograd.grad(out.square().sum(), moved)[0])
    assert torch.allclose(second, (ends[0] - ends[1]) / (2 * step), atol=1e-5)
