"""`torch.compile(fullgraph=True)` takes every mechanism without a graph break, for several lengths."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from regard import masks
from tests.nn.contracts.layers import PLAIN, PRESETS, SEQUENTIAL

pytestmark = pytest.mark.usefixtures("fresh_tracer")
UNROLLED = {"dynamic-memory"}
LENGTHS = [37, 41, 53]  # as in the tests of the core
# A loop over segments is unrolled, so each number of segments would compile again: it is compiled for one length.
AT_ONCE = [case for case in PLAIN if case.name not in UNROLLED]
IN_STEPS = [case for case in PLAIN if case.name in SEQUENTIAL]
USUAL = ("multihead", "additive", "local-p", "static-memory", "global-query")  # the others: make nightly


def padding(n):
    return masks.padding(torch.arange(n) < torch.tensor([[n], [n - 2], [max(0, n - 5)]]))


def results(call, inputs, mask):
    """The output and the gradients of the inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = call(*leaves, mask=mask)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


def assert_equal_to_eager(compiled, layer, inputs, mask):
    for x, y in zip(results(compiled, inputs, mask), results(layer, inputs, mask), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case.name in USUAL else pytest.mark.nightly) for case in AT_ONCE], ids=str
)
def test_one_graph_serves_every_length(case):
    """Over a padded source. `aot_eager` traces the backward pass as well as what `eager` traces."""
    layer = case.build(cross=True, dtype=torch.float32)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    first = None
    for n in LENGTHS:
        inputs = case.inputs(cross=True, q=n - 3, k=n, dtype=torch.float32)
        assert_equal_to_eager(compiled, layer, inputs, padding(n))
        first = first or counter.frame_count
        assert counter.frame_count == first <= 2, f"compiled again at length {n}"


@pytest.mark.parametrize("case", IN_STEPS, ids=str)
def test_steps_unroll_into_one_graph(case):
    layer, inputs = case.build(dtype=torch.float32), case.inputs(k=3, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="eager")
    assert_equal_to_eager(compiled, layer, inputs, padding(3))


@pytest.mark.parametrize("case", [case for case in AT_ONCE if case not in PRESETS], ids=str)
def test_self_attention_compiles(case):
    layer, inputs = case.build(dtype=torch.float32), case.inputs(dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_equal_to_eager(compiled, layer, inputs, None)


@pytest.mark.parametrize("case", PRESETS, ids=str)
def test_a_causal_call_and_a_step_with_a_state_compile(case):
    layer, (rows,) = case.build(dtype=torch.float32), case.inputs(k=5, dtype=torch.float32)

    def call(rows, row, state):
        return layer(rows), layer(row, state=state)[0]

    with torch.no_grad():
        _, state = layer(rows[:, :4], state=layer.initial_state(3))
        whole, step = torch.compile(call, fullgraph=True, backend="eager")(rows, rows[:, 4:], state)
        expected = layer(rows)
        torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(step, expected[:, 4:], rtol=1e-4, atol=1e-4)
