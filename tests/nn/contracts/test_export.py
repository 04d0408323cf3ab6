"""`torch.export` and `torch.func` take every mechanism: one graph for many lengths, gradients by a transform."""

import pytest
import torch
from torch.func import functional_call, grad

from tests.nn.contracts.layers import PLAIN

LENGTHS = [19, 2, 31, 67]
# It loops over segments in Python, and the loop is unrolled: an exported graph serves one length.
ONE_LENGTH = {"dynamic-memory"}


@pytest.mark.parametrize(
    "case", [case if case.name == "local" else pytest.param(case, marks=pytest.mark.slow) for case in PLAIN], ids=str
)
def test_one_exported_graph_serves_every_length(case):
    layer = case.build(dtype=torch.float32)
    (given,) = case.inputs(k=LENGTHS[0], dtype=torch.float32)
    shapes = {} if case.name in ONE_LENGTH else {1: torch.export.Dim("length", min=2, max=4096)}
    exported = torch.export.export(layer, (given,), dynamic_shapes={"query": shapes}).module()
    for length in LENGTHS if shapes else LENGTHS[:1]:
        (given,) = case.inputs(k=length, dtype=torch.float32, seed=length)
        torch.testing.assert_close(exported(given), layer(given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_gradients_by_a_transform_are_those_of_autograd(case):
    layer = case.build()
    (given,) = case.inputs(k=17)
    parameters = dict(layer.named_parameters())

    def loss(parameters, given):
        torch.manual_seed(3)  # what a layer draws
        return functional_call(layer, parameters, (given,)).square().sum()

    names, targets = list(parameters), [*parameters.values(), given.requires_grad_()]
    expected = torch.autograd.grad(loss(parameters, given), targets, allow_unused=True)
    by_parameter, by_input = grad(loss, argnums=(0, 1))(parameters, given.detach())
    for name, found, other in zip([*names, "input"], [*by_parameter.values(), by_input], expected, strict=True):
        other = torch.zeros_like(found) if other is None else other
        torch.testing.assert_close(found, other, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
