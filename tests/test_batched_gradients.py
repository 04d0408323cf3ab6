"""Several gradients in one backward pass: `is_grads_batched`, `jacobian(vectorize=True)` and `gradcheck`."""

import pytest
import torch
from torch.autograd.functional import jacobian

import regard
from regard.dispatch.edge_attention import attend_edges
from regard.formula.edges import Edges
from tests import test_transforms
from tests.contracts.entries import NORMALIZERS
from tests.test_transforms import CASES, B, H, Q, V, both, draw

GRADIENTS = 3


@pytest.fixture
def inputs():
    torch.manual_seed(3)
    shapes = ((B, H, Q, test_transforms.D), (B, H, test_transforms.K, test_transforms.D))
    shapes = (*shapes, (B, H, test_transforms.K, V), (test_transforms.D,))
    return [draw(*shape).requires_grad_() for shape in shapes]


def batched(output, leaves, grads, **options):
    return torch.autograd.grad(output, leaves, grads, is_grads_batched=True, allow_unused=True, **options)


def in_turn(output, leaves, grads):
    """The same, a pass for each gradient."""
    found = [torch.autograd.grad(output, leaves, grad, retain_graph=True, allow_unused=True) for grad in grads]
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_several_gradients_are_those_of_the_plain_formula(name, impl, recorded, inputs):
    grads = draw(GRADIENTS, B, H, Q, V)
    found, expected = (
        batched(function(*inputs), inputs, grads, create_graph=recorded) for function in both(name, impl)
    )
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("impl", ["auto", "tiled"])
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_a_vectorized_jacobian_and_gradcheck(normalize, impl, inputs):
    query, key, value = (part.detach()[:1, :1] for part in inputs[:3])

    def call(query, value):
        return regard.attend(query, key, value, impl=impl, normalize=NORMALIZERS[normalize][0])

    given = (query, value)
    for one, other in zip(jacobian(call, given, vectorize=True), jacobian(call, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    if normalize != "hard":
        given = tuple(part.requires_grad_() for part in given)
        assert torch.autograd.gradcheck(call, given, check_batched_grad=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_several_gradients_over_edges(impl, weighted):
    torch.manual_seed(1)
    edges = Edges.of(torch.randint(7, (2, 23)), 7)
    tensors = [draw(7, 2, 3).requires_grad_() for _ in range(3)]
    weight = draw(2, 3).requires_grad_() if weighted else None
    output = attend_edges(*tensors, edges, weight=weight, impl=impl)
    leaves, grads = [*tensors, *([weight] if weighted else [])], draw(GRADIENTS, *output.shape)
    for one, other in zip(
        batched(output, leaves, grads, retain_graph=True), in_turn(output, leaves, grads), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [5, 37])  # few keys do not go to torch's own kernels
@pytest.mark.parametrize("name", regard.nn.names())
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's, of its own kernels
def test_several_gradients_through_each_mechanism(name, length):
    torch.manual_seed(2)
    options = {"window": 5} if "local" in name else {}
    layer = regard.nn.build(name, dim=8, **options).double().eval()
    rows = draw(2, length, 8).requires_grad_()
    output = layer(rows)
    leaves, grads = [rows, *layer.parameters()], draw(GRADIENTS, *output.shape)
    for one, other in zip(
        batched(output, leaves, grads, retain_graph=True), in_turn(output, leaves, grads), strict=True
    ):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_every_operator_that_computes_gradients_takes_several():
    names = {one.name for one in torch._C._jit_get_all_schemas() if one.name.startswith("regard::")}
    names = sorted(name for name in names if name.endswith("_backward"))
    assert {"regard::tiled_backward", "regard::scan_backward"} <= set(names)
    lacking = [name for name in names if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Batched")]
    assert not lacking
