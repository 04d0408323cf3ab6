"""Attention over edges by kernels, against the formula on all edges at once."""

import math

import pytest
import torch

from regard.dispatch.edge_attention import attend_edges
from regard.formula.edges import Edges
from tests.test_batched_gradients import in_turn
from tests.triton.conftest import DEVICE, GPU

#              nodes, sources, heads, across, width, edges
SIZES = {"small": (5, 7, 3, 5, 2, 23), "no edges": (5, 3, 2, 3, 2, 0)}
if GPU:
    SIZES |= {"many": (997, 1009, 8, 8, 8, 20011), "one head": (7, 5, 1, 3, 37, 23), "wide": (61, 67, 5, 129, 257, 701)}


def drawn(size, weighted, dtype):
    torch.manual_seed(0)
    nodes, sources, heads, across, width, count = size
    across = across if weighted else 1
    shapes = [(nodes, heads, across), (sources, heads, across), (sources, heads, width)]
    shapes += [(heads, across)] if weighted else []
    pairs = torch.stack([torch.randint(sources, (count,)), torch.randint(nodes, (count,))])
    tensors = [torch.randn(shape).to(DEVICE, dtype).requires_grad_() for shape in shapes]
    return tensors, Edges.of(pairs, nodes, sources).to(DEVICE)


def results(tensors, edges, weighted, impl, dropout, grad):
    torch.manual_seed(3)
    weight = tensors[3] if weighted else None
    output = attend_edges(*tensors[:3], edges, weight=weight, dropout=dropout, impl=impl)
    return [output, *torch.autograd.grad(output, tensors, grad)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_outputs_and_gradients_are_those_of_the_formula(size, weighted, dropout):
    tensors, edges = drawn(SIZES[size], weighted, torch.float64)
    grad = torch.randn(edges.nodes, *tensors[2].shape[1:], dtype=torch.float64, device=DEVICE)
    for one, other in zip(
        results(tensors, edges, weighted, "triton", dropout, grad),
        results(tensors, edges, weighted, "reference", dropout, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_several_gradients_at_once_are_those_of_a_pass_for_each():
    tensors, edges = drawn(SIZES["small"], True, torch.float64)
    output = attend_edges(*tensors[:3], edges, weight=tensors[3], impl="triton")
    grads = torch.randn(3, *output.shape, dtype=torch.float64, device=DEVICE)
    found = torch.autograd.grad(output, tensors, grads, is_grads_batched=True, retain_graph=True)
    for one, other in zip(found, in_turn(output, tensors, grads), strict=True):
        assert torch.equal(one, other)


def test_equal_inputs_give_equal_bits():
    tensors, edges = drawn(SIZES["many" if GPU else "small"], True, torch.float32)
    grad = torch.randn(edges.nodes, *tensors[2].shape[1:], device=DEVICE)
    first, second = (results(tensors, edges, True, "triton", 0.3, grad) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("weighted", [False, True])
def test_nan_of_a_node_stays_with_the_nodes_that_see_it(weighted):
    tensors, edges = drawn(SIZES["small"], weighted, torch.float32)
    source = int(edges.sources[0])
    seeing = edges.targets[edges.sources == source].unique()
    with torch.no_grad():
        tensors[1][source], tensors[2][source] = math.nan, math.nan
    grad = torch.randn(edges.nodes, *tensors[2].shape[1:], device=DEVICE)
    grad[seeing] = 0
    output, *grads = results(tensors, edges, weighted, "triton", 0.0, grad)
    hidden = torch.isin(torch.arange(edges.nodes, device=DEVICE), seeing)
    assert output[hidden].isnan().all() and output[~hidden].isfinite().all()
    assert all(one.isfinite().all() for one in grads)


def test_a_recorded_backward_pass_goes_through_the_formula():
    tensors, edges = drawn((3, 5, 2, 3, 2, 7), True, torch.float64)
    found = []
    for impl in ("triton", "reference"):
        output = attend_edges(*tensors[:3], edges, weight=tensors[3], impl=impl)
        grads = torch.autograd.grad(output.square().sum(), tensors, create_graph=True)
        found.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), tensors))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
