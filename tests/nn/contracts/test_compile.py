"""`torch.compile(fullgraph=True)` takes every mechanism without a graph break, for several lengths."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from regard import masks
from tests.nn.contracts.layers import CAUSAL, PLAIN, SEQUENTIAL, USES

LENGTHS = [11, 13, 23]
# With a list of steps each length is another program: these are compiled for one length.
AT_ONCE = [case for case in PLAIN if case.name not in SEQUENTIAL]
IN_STEPS = [case for case in PLAIN if case.name in SEQUENTIAL]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def padding(n):
    return masks.padding(torch.arange(n) < torch.tensor([[n], [n - 2], [n - 5]]))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", AT_ONCE, ids=str)
def test_one_graph_serves_every_length(case):
    """Over a padded source; self use is compiled with its gradients below."""
    layer = case.build(cross=True, dtype=torch.float32)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    first = None
    for n in LENGTHS:
        inputs = case.inputs(cross=True, q=n - 3, k=n, dtype=torch.float32)
        close(compiled(*inputs, mask=padding(n)), layer(*inputs, mask=padding(n)))
        first = first or counter.frame_count
        assert counter.frame_count == first <= 2, f"compiled again at length {n}"


@pytest.mark.parametrize("case", IN_STEPS, ids=str)
def test_steps_unroll_into_one_graph(case):
    for cross in USES:
        layer, inputs = case.build(cross, dtype=torch.float32), case.inputs(cross, dtype=torch.float32)
        compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="eager")
        close(compiled(*inputs, mask=padding(7)), layer(*inputs, mask=padding(7)))


@pytest.mark.parametrize("case", [case for case in CAUSAL if case.options in ({}, {"causal": True})], ids=str)
def test_a_step_with_a_state_compiles(case):
    layer, (rows,) = case.build(dtype=torch.float32), case.inputs(dtype=torch.float32)

    def step(row, state):
        return layer(row, state=state)

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    with torch.no_grad():
        _, state = layer(rows[:, :4], state=layer.initial_state(3))
        out, _ = compiled(rows[:, 4:5], state)
        close(out, layer(rows[:, :5])[:, 4:])


@pytest.mark.parametrize("case", AT_ONCE, ids=str)
def test_gradients_pass_through_a_compiled_layer(case):
    layer, inputs = case.build(dtype=torch.float32), case.inputs(dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    leaves = [*[x.requires_grad_() for x in inputs], *layer.parameters()]
    found = torch.autograd.grad(compiled(*inputs).square().sum(), leaves, allow_unused=True)
    expected = torch.autograd.grad(layer(*inputs).square().sum(), leaves, allow_unused=True)
    for x, y in zip(found, expected, strict=True):
        if y is not None:
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
